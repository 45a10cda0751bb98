// Formats, packings and bad records of `osdn prepare`, through the command line.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "base/json.h"
#include "data/shard.h"
#include "tests/data/packed.h"
#include "tests/data/parquet_file.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace osdn {
namespace prepare_formats_test {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Two hundred short documents.
std::vector<std::string> documents() {
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i)
    texts.push_back("Document " + std::to_string(i) + " says that the number is " + std::to_string(i * i) +
                    ".");
  return texts;
}

std::string as_lines(const std::vector<std::string>& texts) {
  std::string lines;
  for (const std::string& text : texts) lines += "{\"data\": {\"text\": \"" + text + "\"}}\n";
  return lines;
}

struct Folder {
  TemporaryDirectory folder;
  const std::string& path() const { return folder.path(); }
  void write(const std::string& name, const std::string& content) const {
    atomic_write(path() + "/" + name, content);
  }
  test::ProcessResult prepare(const std::string& input, const std::string& output,
                              const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {
        "prepare",    "--input",   input,          "--output", output,
        "--text-key", "data.text", "--vocab-size", "300",      "--validation-fraction",
        "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::run_osdn(arguments, path());
  }
  std::string digest(const std::string& output) const {
    return data::ShardReader(path() + "/" + output + "/train-00000.h5").tokens_digest();
  }
};

}  // namespace prepare_formats_test

TEST_CASE("Lines, packed lines and Parquet of the same text become the same tokens", "[prepare_formats]") {
  const prepare_formats_test::Folder folder;
  const std::vector<std::string> texts = prepare_formats_test::documents();
  const std::string lines = prepare_formats_test::as_lines(texts);
  folder.write("a.jsonl", lines);
  folder.write("b.jsonl.gz", data::test::gzip(lines));
  folder.write("c.jsonl.zst", data::test::zstd(lines));
  std::vector<std::string> inputs = {"a.jsonl", "b.jsonl.gz", "c.jsonl.zst"};
  if (data::test::has_parquet()) {
    data::test::write_parquet(folder.path() + "/d.parquet", texts, "nested", "snappy", 30);
    inputs.emplace_back("d.parquet");
  }
  for (const std::string& input : inputs) {
    const test::ProcessResult result = folder.prepare(input, input + "-shards");
    CAPTURE(input, result.err);
    REQUIRE(result.exit_code == 0);
    CHECK(prepare_formats_test::contains(result.out, "200 documents"));
    CHECK(folder.digest(input + "-shards") == folder.digest("a.jsonl-shards"));
  }
}

TEST_CASE("Skipped records are counted by kind on the screen and in prepare.json", "[prepare_formats]") {
  const prepare_formats_test::Folder folder;
  const std::string good = prepare_formats_test::as_lines(prepare_formats_test::documents());
  folder.write("good.jsonl", good);
  folder.write("bad.jsonl", "oops\n" + good.substr(0, good.size() / 2) + "\n{\"data\": {\"text\": null}}\n" +
                                good.substr(good.find('\n', good.size() / 2) + 1) +
                                "{\"data\": {\"text\": \"cut");
  const test::ProcessResult stopped = folder.prepare("bad.jsonl", "shards");
  CHECK(stopped.exit_code == 2);
  CHECK(prepare_formats_test::contains(stopped.err, "bad.jsonl:1: expected one JSON object a line"));
  CHECK(prepare_formats_test::contains(stopped.err, "--on-error skip"));
  CHECK_FALSE(std::filesystem::exists(folder.path() + "/shards/prepare.json"));
  const test::ProcessResult result = folder.prepare("bad.jsonl", "shards", {"--on-error", "skip"});
  CAPTURE(result.out, result.err);
  REQUIRE(result.exit_code == 0);
  const Json json = read_json(folder.path() + "/shards/prepare.json").at("skipped_records");
  CHECK(json.at("broken_json") == 2);
  CHECK(json.at("null") == 1);
  CHECK(json.at("cut_off_line") == 1);
  CHECK(json.at("too_long") == 0);
  CHECK(prepare_formats_test::contains(result.out, "2 records: broken_json"));
  CHECK(prepare_formats_test::contains(result.err, "bad.jsonl:1: "));
  // Asked again, it remembers them; asked to stop at them, it does not take what is there for an answer.
  CHECK(prepare_formats_test::contains(folder.prepare("bad.jsonl", "shards", {"--on-error", "skip"}).out,
                                       "2 records: broken_json"));
  CHECK(folder.prepare("bad.jsonl", "shards").exit_code == 2);
}

TEST_CASE("A damaged packed file ends preparation by name, also where bad records are skipped",
          "[prepare_formats]") {
  const prepare_formats_test::Folder folder;
  const std::string packed =
      data::test::gzip(prepare_formats_test::as_lines(prepare_formats_test::documents()));
  folder.write("cut.jsonl.gz", packed.substr(0, packed.size() - 9));
  const test::ProcessResult result = folder.prepare("cut.jsonl.gz", "shards", {"--on-error", "skip"});
  CAPTURE(result.err);
  CHECK(result.exit_code == 4);
  CHECK(prepare_formats_test::contains(result.err, "cut.jsonl.gz: damaged gzip stream at byte "));
  CHECK_FALSE(std::filesystem::exists(folder.path() + "/shards/prepare.json"));
}

TEST_CASE("A program without the Parquet reader beside it names the cure", "[prepare_formats]") {
  const prepare_formats_test::Folder folder;
  // A copy elsewhere finds no ../lib/osdn_parquet.
  std::filesystem::create_directories(folder.path() + "/bin");
  std::filesystem::copy_file(OSDN_BINARY, folder.path() + "/bin/osdn");
  folder.write("a.parquet", "PAR1");
  const test::ProcessResult result =
      test::Process({folder.path() + "/bin/osdn", "prepare", "--input", "a.parquet", "--output", "shards"},
                    folder.path())
          .wait();
  CAPTURE(result.err);
  CHECK(result.exit_code == 3);
  CHECK(prepare_formats_test::contains(result.err, "a.parquet: reading Parquet needs "));
  CHECK(prepare_formats_test::contains(result.err, "/lib/osdn_parquet, which is not there"));
  CHECK(prepare_formats_test::contains(result.err, "run scripts/setup.sh and build again"));
}

}  // namespace osdn
