#include <cmath>
#include <filesystem>

#include "tests/integration/run_fixture.h"

namespace osdn::test {
namespace eval_test {

ProcessResult evaluate(const std::vector<std::string>& more, const std::string& what = "runs/small") {
  std::vector<std::string> arguments = {"eval", what, "--suite", "perplexity"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_osdn(arguments, trained_run().path());
}

Json evaluate_json(std::vector<std::string> more, const std::string& what = "runs/small") {
  more.insert(more.end(), {"--json", "-"});
  const ProcessResult result = evaluate(more, what);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return Json::parse(result.out);
}

TEST_CASE("eval measures the run's validation shards, as a table and as JSON", "[eval]") {
  const ProcessResult table = evaluate({"--json", "result.json", "--per-document"});
  INFO(table.err);
  REQUIRE(table.exit_code == 0);
  check_mentions(table.out, {"runs/small/checkpoints/step_00000012", "token perplexity", "word perplexity",
                             "byte perplexity", "bits per byte", "(beyond training)"});
  const Json json = read_json(trained_run().path() + "/result.json");
  CHECK(json["step"] == 12);
  CHECK(json["training_length"] == 64);
  CHECK(json["tokenizer"]["lossless"] == true);
  // The loss of 12 steps lies between a trained model's and that of guessing among 512 pieces.
  CHECK(json["loss"].get<double>() > 2.0);
  CHECK(json["loss"].get<double>() < 6.3);
  double sum = 0;
  int64_t tokens = 0;
  for (const Json& document : json["per_document"]) {
    sum += document["negative_log_likelihood"].get<double>();
    tokens += document["tokens"].get<int64_t>();
  }
  CHECK(json["negative_log_likelihood"].get<double>() == Approx(sum));
  CHECK(json["tokens"] == tokens);
  CHECK(json["documents"] == json["per_document"].size());
  int64_t by_position = 0;
  for (const Json& bucket : json["by_position"]) by_position += bucket["tokens"].get<int64_t>();
  CHECK(by_position == tokens);
}

TEST_CASE("a checkpoint's directory and a damaged newest one are evaluated as they should", "[eval]") {
  const Json run = evaluate_json({"--max-documents", "3"});
  const Json step = evaluate_json({"--max-documents", "3"}, "runs/small/checkpoints/step_00000012");
  CHECK(step["loss"] == run["loss"]);
  // A copy whose newest checkpoint has lost a byte: the one before it is used, and the log says so.
  std::filesystem::copy(trained_run().path() + "/runs/small", trained_run().path() + "/runs/copy",
                        std::filesystem::copy_options::recursive);
  const std::string damaged = trained_run().path() + "/runs/copy/checkpoints/step_00000012/model.safetensors";
  std::filesystem::resize_file(damaged, std::filesystem::file_size(damaged) - 1);
  const ProcessResult result = evaluate({"--max-documents", "3", "--json", "-"}, "runs/copy");
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(Json::parse(result.out)["step"] == 9);
  check_mentions(result.err, {"step_00000012"});
}

TEST_CASE("the batch, the window and the stride change what they should and nothing else", "[eval]") {
  const std::vector<std::string> few = {"--max-documents", "6", "--per-document"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), few.begin(), few.end());
    return evaluate_json(more);
  };
  const Json whole = with({});
  const Json pieces = with({"--tokens-at-once", "64"});
  for (size_t i = 0; i < 6; ++i) {
    const Json& a = whole["per_document"][i];
    const Json& b = pieces["per_document"][i];
    CHECK(a["name"] == b["name"]);
    CHECK(a["tokens"] == b["tokens"]);
    CHECK(std::abs(a["negative_log_likelihood"].get<double>() - b["negative_log_likelihood"].get<double>()) <
          1e-4);
  }
  const Json blocks = with({"--window", "16"});
  const Json sliding = with({"--window", "16", "--stride", "4"});
  CHECK(blocks["tokens"] == whole["tokens"]);
  CHECK(sliding["tokens"] == whole["tokens"]);
  CHECK(blocks["stride"] == 16);
  CHECK(blocks["loss"] != sliding["loss"]);
}

TEST_CASE("text files are evaluated with the run's tokenizer", "[eval]") {
  const std::string folder = trained_run().path();
  std::filesystem::create_directories(folder + "/text");
  atomic_write(folder + "/text/a.txt", "The baker lives in the village.\r\nShe sings.");
  atomic_write(folder + "/text/b.jsonl",
               "{\"body\": \"The river is wide.\"}\n{\"body\": 4}\n{\"body\": \"\"}\n");
  const Json json = evaluate_json(
      {"--data", "text/a.txt", "--data", "text/*.jsonl", "--text-key", "body", "--on-error", "skip"});
  CHECK(json["documents"] == 2);
  CHECK(json["words"] == 12);
  CHECK(json["bytes"] == 60);
  CHECK(json["skipped_records"] == 1);
  CHECK(json["data"].size() == 2);
}

TEST_CASE("shards are known by the names that a glob matches, not by its own", "[eval]") {
  const ProcessResult named = evaluate({"--data", "shards/valid-*.h5", "--json", "-"});
  const ProcessResult matched = evaluate({"--data", "shards/valid*", "--json", "-"});
  INFO(matched.err);
  REQUIRE(named.exit_code == 0);
  REQUIRE(matched.exit_code == 0);
  CHECK(Json::parse(matched.out)["loss"] == Json::parse(named.out)["loss"]);
}

TEST_CASE("what eval cannot do is refused in one line", "[eval]") {
  const auto refused = [&](const std::vector<std::string>& more, int code,
                           const std::vector<std::string>& parts) {
    const ProcessResult result = evaluate(more);
    CHECK(result.exit_code == code);
    CHECK(result.out.empty());
    check_mentions(result.err, parts);
  };
  const ProcessResult unknown = run_osdn({"eval", "runs/small", "--suite", "mqar"}, trained_run().path());
  CHECK(unknown.exit_code == 2);
  check_mentions(unknown.err, {"--suite", "perplexity", "mqar"});
  CHECK(run_osdn({"eval", "runs/small"}, trained_run().path()).exit_code == 2);
  CHECK(evaluate({}, "runs/absent").exit_code == 2);
  refused({"--window", "16", "--stride", "17"}, 2, {"--stride", "1 to the window's 16"});
  refused({"--window", "0"}, 2, {"--window"});
  refused({"--window", "many"}, 2, {"--window", "many"});
  refused({"--stride", "4"}, 2, {"--stride", "--window"});
  refused({"--data", "absent/*.h5"}, 2, {"nothing matches absent/*.h5"});
  refused({"--data", "absent/*.txt"}, 2, {"absent/*.txt"});
  refused({"--data", "shards/valid-*.h5", "--data", "small.txt"}, 2, {"either shards"});
  refused({"--colour"}, 2, {"--colour"});
  atomic_write(trained_run().path() + "/blank.txt", " \n");
  refused({"--data", "blank.txt"}, 2, {"blank.txt"});
}

}  // namespace eval_test
}  // namespace osdn::test
