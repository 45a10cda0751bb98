#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/fs.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace osdn {
namespace prepare_command_test {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace prepare_command_test

TEST_CASE("osdn prepare takes a configuration or options, and does a thing once", "[prepare_command]") {
  using prepare_command_test::contains;
  const TemporaryDirectory folder;
  const std::vector<std::string> options = {"prepare",      "--builtin", "--megabytes", "1",
                                            "--vocab-size", "600",       "--output",    "a"};
  const test::ProcessResult first = test::run_osdn(options, folder.path());
  CAPTURE(first.out, first.err);
  REQUIRE(first.exit_code == 0);
  CHECK(contains(first.out, "600 pieces"));
  CHECK(contains(first.err, "encoding"));
  CHECK_FALSE(contains(first.out, "already prepared"));
  CHECK(contains(test::run_osdn(options, folder.path()).out, "already prepared"));

  atomic_write(folder.path() + "/b.yaml",
               "prepare: {builtin: true, builtin_megabytes: 1, output: b, tokenizer: {train: bpe, "
               "vocab_size: 500}}\n");
  const test::ProcessResult second = test::run_osdn(
      {"prepare", "b.yaml", "--set", "prepare.tokenizer.vocab_size=600", "--workers", "3"}, folder.path());
  CAPTURE(second.err);
  REQUIRE(second.exit_code == 0);
  for (const std::string name : {"/train-00000.h5", "/valid-00000.h5", "/tokenizer.model"})
    CHECK(read_file(folder.path() + "/a" + name) == read_file(folder.path() + "/b" + name));
}

TEST_CASE("osdn prepare says in one line what is wrong and leaves no shard", "[prepare_command]") {
  using prepare_command_test::contains;
  const TemporaryDirectory folder;
  atomic_write(folder.path() + "/bad.jsonl", "{\"text\": \"one\"}\n{\"text\": \"tw\xE9\"}\n");
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "prepare");
    return test::run_osdn(arguments, folder.path());
  };
  test::ProcessResult result = run({"--input", "bad.jsonl", "--output", "s"});
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "bad.jsonl:2: expected UTF-8, found byte 0xE9"));
  CHECK_FALSE(std::filesystem::exists(folder.path() + "/s/tokenizer.model"));
  result = run({"--input", "none/*.txt", "--output", "s"});
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "prepare.input: nothing matches none/*.txt"));
  CHECK(run({"--output", "s"}).exit_code == 2);
  CHECK(run({"--input", "bad.jsonl", "--builtin"}).exit_code == 2);
  CHECK(run({"absent.yaml"}).exit_code == 2);
  result = run({"--builtin", "--megabytes", "1", "--vocab-size", "259", "--output", "s"});
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "prepare.tokenizer.vocab_size: expected at least 260"));
  CHECK_FALSE(contains(result.err, "reading"));  // said before the text is read
  result = run({"--builtin", "--megabytes", "1", "--vocab-size", "500000", "--output", "s"});
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "too large for this text, which gives at most"));
}

TEST_CASE("osdn prepare continues after it was killed, and says so", "[prepare_command]") {
  using prepare_command_test::contains;
  const TemporaryDirectory folder;
  const auto arguments = [](const std::string& output, const std::string& workers) {
    return std::vector<std::string>{"prepare",      "--builtin", "--megabytes",    "3",
                                    "--vocab-size", "600",       "--output",       output,
                                    "--workers",    workers,     "--shard-tokens", "50000"};
  };
  REQUIRE(test::run_osdn(arguments("whole", "1"), folder.path()).exit_code == 0);
  const std::string journal = folder.path() + "/killed/.prepare/journal.json";
  bool killed = false;
  for (int attempt = 0; attempt < 20 && !killed; ++attempt) {
    std::vector<std::string> command = arguments("killed", "2");
    command.insert(command.begin(), OSDN_BINARY);
    test::Process process(command, folder.path());
    // As soon as some shard is done.
    while (process.running() && !std::filesystem::exists(folder.path() + "/killed/.prepare/train-00000.h5"))
      ::usleep(200);
    process.signal(SIGKILL);
    killed = process.wait().exit_code == 128 + SIGKILL && std::filesystem::exists(journal);
    if (!killed) std::filesystem::remove_all(folder.path() + "/killed");
  }
  REQUIRE(killed);
  CHECK_FALSE(std::filesystem::exists(folder.path() + "/killed/train-00000.h5"));
  const test::ProcessResult again = test::run_osdn(arguments("killed", "3"), folder.path());
  CAPTURE(again.err);
  REQUIRE(again.exit_code == 0);
  CHECK(contains(again.err, "continues an interrupted preparation"));
  CHECK_FALSE(contains(again.err, "training the tokenizer"));
  int64_t shards = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() + "/whole")) {
    const std::string name = entry.path().filename().string();
    if (name.front() == '.' || name == "prepare.json") continue;
    CAPTURE(name);
    CHECK((read_file(entry.path().string()) == read_file(folder.path() + "/killed/" + name)));
    ++shards;
  }
  CHECK(shards > 10);
}

TEST_CASE("osdn prepare refuses a file that is no tokenizer and an output that is no folder",
          "[prepare_command]") {
  using prepare_command_test::contains;
  const TemporaryDirectory folder;
  const auto run = [&](const std::string& tokenizer, const std::string& output) {
    return test::run_osdn(
        {"prepare", "--builtin", "--megabytes", "1", "--tokenizer", tokenizer, "--output", output},
        folder.path());
  };
  REQUIRE(test::run_osdn({"tokenizer", "train", "--builtin", "--vocab-size", "600", "--output", "t.model"},
                         folder.path())
              .exit_code == 0);
  const std::string model = read_file(folder.path() + "/t.model");
  for (const std::string& content :
       {std::string("no model"), std::string(), model.substr(0, model.size() / 2), std::string(5000, '\0')}) {
    CAPTURE(content.size());
    atomic_write(folder.path() + "/bad.model", content);
    const test::ProcessResult result = run("bad.model", "s");
    CHECK(result.exit_code == 4);
    CHECK(contains(result.err, "bad.model: expected a sentencepiece model"));
    CHECK_FALSE(std::filesystem::exists(folder.path() + "/s"));
  }
  CHECK(run("absent.model", "s").exit_code == 2);
  const test::ProcessResult file = run("t.model", "t.model/s");
  CHECK(file.exit_code == 3);
  CHECK(contains(file.err, "t.model/s: cannot"));
  // /proc is a folder in which nobody can make files.
  const test::ProcessResult readonly = run("t.model", "/proc/osdn");
  CHECK(readonly.exit_code == 3);
  CHECK(contains(readonly.err, "/proc/osdn: "));
}

TEST_CASE("osdn tokenizer trains, encodes and decodes", "[prepare_command]") {
  using prepare_command_test::contains;
  const TemporaryDirectory folder;
  const test::ProcessResult trained = test::run_osdn(
      {"tokenizer", "train", "--builtin", "--vocab-size", "600", "--type", "unigram", "--output", "t.model"},
      folder.path());
  CAPTURE(trained.err);
  REQUIRE(trained.exit_code == 0);
  const std::string text = "  Mara \xE2\x96\x81 lives\tin </s> \xF0\x9F\x98\x80 Tolver.\n";
  const test::ProcessResult encoded =
      test::run_osdn({"tokenizer", "encode", "t.model", "--text", text}, folder.path());
  REQUIRE(encoded.exit_code == 0);
  std::vector<std::string> arguments = {"tokenizer", "decode", "t.model"};
  std::string id;
  for (const char character : encoded.out) {
    if (character >= '0' && character <= '9') {
      id += character;
    } else if (!id.empty()) {
      arguments.push_back(id);
      id.clear();
    }
  }
  CHECK(test::run_osdn(arguments, folder.path()).out == text);
  const test::ProcessResult wrong = test::run_osdn({"tokenizer", "decode", "t.model", "600"}, folder.path());
  CHECK(wrong.exit_code == 2);
  CHECK(contains(wrong.err, "expected ids from 0 to 599, got 600"));
  atomic_write(folder.path() + "/no.model", "no model");
  CHECK(test::run_osdn({"tokenizer", "encode", "no.model", "--text", "x"}, folder.path()).exit_code == 4);
  // Shards know the tokenizer that made them by its digest, and so does this command.
  CHECK(contains(trained.out, "600 pieces, digest "));
}

}  // namespace osdn
