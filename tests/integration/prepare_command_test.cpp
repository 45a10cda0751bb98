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
  CHECK(run({"absent.yaml"}).exit_code == 3);
  result = run({"--builtin", "--megabytes", "1", "--vocab-size", "500000", "--output", "s"});
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "too large for this text, which gives at most"));
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
