#include <algorithm>
#include <sstream>

#include "tests/integration/run_fixture.h"

namespace osdn::test {
namespace generate_test {

ProcessResult generate(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"generate", "runs/small"};
  if (std::find(more.begin(), more.end(), "--max-tokens") == more.end())
    arguments.insert(arguments.end(), {"--max-tokens", "20"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_osdn(arguments, trained_run().path());
}

std::vector<Json> generate_json(std::vector<std::string> more) {
  more.emplace_back("--json");
  const ProcessResult result = generate(more);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  std::vector<Json> records;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) records.push_back(Json::parse(line));
  return records;
}

TEST_CASE("a trained run continues a prompt, the same for the same seed", "[generate]") {
  const ProcessResult first = generate({"--prompt", "The baker", "--seed", "3"});
  INFO(first.err);
  CHECK(first.exit_code == 0);
  CHECK(first.out.rfind("The baker", 0) == 0);
  CHECK(first.out.size() > 12);
  check_mentions(first.err, {"MB a sequence"});
  CHECK(generate({"--prompt", "The baker", "--seed", "3"}).out == first.out);
  CHECK(generate({"--prompt", "The baker", "--seed", "4"}).out != first.out);
}

TEST_CASE("prompts of unequal length give in a batch what each gives alone", "[generate]") {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "The baker lives in the village by the river. ";
  atomic_write(trained_run().path() + "/prompts.jsonl", Json("The baker").dump() + "\n" + Json("").dump() +
                                                            "\n" + Json({{"prompt", text}}).dump() + "\n");
  for (const char* temperature : {"0", "0.9"}) {
    const std::vector<Json> together =
        generate_json({"--prompts", "prompts.jsonl", "--temperature", temperature, "--seed", "5"});
    REQUIRE(together.size() == 3);
    // Two at a time, and each by itself.
    CHECK(generate_json({"--prompts", "prompts.jsonl", "--temperature", temperature, "--seed", "5", "--batch",
                         "2"}) == together);
    for (size_t i = 0; i < 3; ++i) {
      const std::vector<Json> alone = generate_json({"--prompt", together[i]["prompt"].get<std::string>(),
                                                     "--temperature", temperature, "--seed", "5"});
      REQUIRE(alone.size() == 1);
      CHECK(alone[0]["token_ids"] == together[i]["token_ids"]);
      CHECK(alone[0]["text"] == together[i]["text"]);
      CHECK(together[i]["index"] == i);
      CHECK(together[i]["new_tokens"] == together[i]["token_ids"].size());
      CHECK(together[i]["state_bytes"] == together[0]["state_bytes"]);
    }
    CHECK(together[1]["prompt_tokens"] == 1);  // bos
  }
}

TEST_CASE("one prompt streams the text that JSON has, several are printed in order", "[generate]") {
  const std::vector<Json> records =
      generate_json({"--prompt", "The baker", "--prompt", "A", "--temperature", "0"});
  REQUIRE(records.size() == 2);
  const auto text = [&](size_t i) {
    return records[i]["prompt"].get<std::string>() + records[i]["text"].get<std::string>() + "\n";
  };
  CHECK(generate({"--prompt", "The baker", "--temperature", "0"}).out == text(0));
  CHECK(generate({"--prompt", "The baker", "--prompt", "A", "--temperature", "0"}).out ==
        text(0) + "\n" + text(1));
}

TEST_CASE("a stop text ends a continuation before it", "[generate]") {
  const std::string whole = generate_json({"--prompt", "The baker", "--temperature", "0"})[0]["text"];
  REQUIRE(whole.size() > 6);
  const std::string stop = whole.substr(3, 2);
  const Json stopped = generate_json({"--prompt", "The baker", "--temperature", "0", "--stop", stop})[0];
  CHECK(stopped["finish"] == "stop");
  CHECK(stopped["text"] == whole.substr(0, whole.find(stop)));
  const Json none = generate_json({"--prompt", "The baker", "--max-tokens", "0"})[0];
  CHECK(none["text"] == "");
  CHECK(none["new_tokens"] == 0);
}

TEST_CASE("ids that are no text, unknown and beyond the tokenizer's vocabulary, are never sampled",
          "[generate]") {
  const RunFolder folder;
  // 100 ids that no text has: an untrained model finds them as likely as any.
  const ProcessResult result = folder.train({"train.steps=1", "model.vocab_size=612"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const ProcessResult sampled =
      run_osdn({"generate", "runs/small", "--prompt", "", "--prompt", "A", "--prompt", "", "--max-tokens",
                "300", "--temperature", "2", "--json"},
               folder.path());
  REQUIRE(sampled.exit_code == 0);
  std::istringstream lines(sampled.out);
  int64_t count = 0;
  for (std::string line; std::getline(lines, line);)
    for (const int64_t id : Json::parse(line)["token_ids"].get<std::vector<int64_t>>()) {
      ++count;
      if (id >= 512 || id == 0) FAIL("sampled id " << id);
    }
  CHECK(count > 100);
}

TEST_CASE("what generate cannot do is refused in one line", "[generate]") {
  const auto refused = [&](const std::vector<std::string>& more, int code,
                           const std::vector<std::string>& parts) {
    const ProcessResult result = generate(more);
    CHECK(result.exit_code == code);
    CHECK(result.out.empty());
    check_mentions(result.err, parts);
  };
  const std::string folder = trained_run().path();
  atomic_write(folder + "/empty.txt", "\n\n");
  atomic_write(folder + "/latin.txt", "fine\nna\xEFve\n");
  refused({}, 2, {"--prompt"});
  refused({"--prompts", "empty.txt"}, 2, {"empty.txt", "holds none"});
  refused({"--prompts", "latin.txt"}, 2, {"latin.txt:2", "UTF-8", "0xEF"});
  refused({"--prompts", "absent.txt"}, 2, {"absent.txt"});
  refused({"--prompt", "a\xFF"}, 2, {"prompt 1", "UTF-8"});
  refused({"--prompt", "a", "--stop", ""}, 2, {"--stop"});
  refused({"--prompt", "a", "--top-p", "0"}, 2, {"top-p"});
  refused({"--prompt", "a", "--temperature", "-1"}, 2,
          {"--temperature: expected a number of at least 0, got \"-1\""});
  refused({"--prompt", "a", "--temperature", "nan"}, 2, {"--temperature", "got \"nan\""});
  refused({"--prompt", "a", "--top-k", "-1"}, 2, {"--top-k: expected a number of at least 0, got \"-1\""});
  refused({"--prompt", "a", "--repetition-penalty", "0"}, 2,
          {"--repetition-penalty: expected a number above 0"});
  refused({"--prompt", "a", "--creativity", "9"}, 2, {"--creativity"});
  refused({"--prompt", "a", "--device", "tpu"}, 2, {"--device"});
  CHECK(run_osdn({"generate", "runs/absent", "--prompt", "a"}, folder).exit_code == 2);
}

TEST_CASE("a tokenizer that is not the run's is refused", "[generate]") {
  const std::string folder = trained_run().path();
  REQUIRE(run_osdn({"prepare", "--builtin", "--megabytes", "1", "--vocab-size", "400", "--output", "other"},
                   folder)
              .exit_code == 0);
  const ProcessResult result = generate({"--prompt", "a", "--tokenizer", "other/tokenizer.model"});
  CHECK(result.exit_code == 2);
  check_mentions(result.err, {"other/tokenizer.model", "digest"});
}

}  // namespace generate_test
}  // namespace osdn::test
