// The King James Bible, which the package registry carries (data/king_james): fetched, prepared in every form
// and trained on, as a user does it.
#include <string>
#include <utility>
#include <vector>

#include "data/shard.h"
#include "tests/data/packed.h"
#include "tests/data/parquet_file.h"
#include "tests/integration/run_fixture.h"

namespace osdn {
namespace real_corpus_test {

/// Texts of the lines, with the ids they had.
std::vector<std::string> texts_of(const std::string& lines) {
  std::vector<std::string> texts;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) texts.push_back(Json::parse(line).at("text"));
  return texts;
}

/// The digests of the tokens of a prepared folder.
std::pair<std::string, std::string> digests(const std::string& folder) {
  const data::ShardReader train(folder + "/train-00000.h5");
  const data::ShardReader validation(folder + "/valid-00000.h5");
  train.verify();
  validation.verify();
  return {train.tokens_digest(), validation.tokens_digest()};
}

}  // namespace real_corpus_test

TEST_CASE("A real corpus in every packing and format gives the same tokens, and a model learns it",
          "[real_corpus][slow]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path();
  const std::string source = OSDN_SOURCE_DIR "/data/king_james";
  test::ProcessResult result = test::Process({source + "/fetch.sh", "corpus/king_james.jsonl"}, path).wait();
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const std::string lines = read_file(path + "/corpus/king_james.jsonl");
  const std::vector<std::string> texts = real_corpus_test::texts_of(lines);
  CHECK(texts.size() == 1189);
  int64_t bytes = 0;
  for (const std::string& text : texts) bytes += static_cast<int64_t>(text.size());
  CHECK(bytes >= 4'000'000);
  CHECK(texts.front().rfind("In the beginning God created the heaven and the earth.\n", 0) == 0);
  CHECK(texts.back().find("The grace of our Lord Jesus Christ be with you all. Amen.\n") !=
        std::string::npos);

  const std::string config = source + "/prepare.yaml";
  result = test::run_osdn({"prepare", config}, path);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const auto wanted = real_corpus_test::digests(path + "/shards/king_james");

  std::vector<std::string> forms = {"corpus/king_james.jsonl.gz", "corpus/king_james.jsonl.zst"};
  atomic_write(path + "/" + forms[0],
               data::test::gzip(lines.substr(0, 1'000'000)) + data::test::gzip(lines.substr(1'000'000)));
  atomic_write(path + "/" + forms[1], data::test::zstd(lines));
  if (data::test::has_parquet()) {
    forms.emplace_back("corpus/king_james.parquet");
    data::test::write_parquet(path + "/" + forms.back(), texts, "nested", "zstd", 400);
  }
  for (const std::string& form : forms) {
    CAPTURE(form);
    result = test::run_osdn(
        {"prepare", config, "--set", "prepare.input=[" + form + "]", "--set", "prepare.output=again", "--set",
         "prepare.text_key=" + std::string(form.find("parquet") == std::string::npos ? "text" : "data.text"),
         "--overwrite"},
        path);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    CHECK(real_corpus_test::digests(path + "/again") == wanted);
  }

  result = test::run_osdn({"train", config, "--set", "train.steps=120", "--set", "evaluation.every_steps=40"},
                          path);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  std::vector<double> validation;
  for (const Json& record : test::timeless_metrics(path + "/runs/king-james"))
    if (record.contains("validation_loss") && record.at("validation_loss").is_number())
      validation.push_back(record.at("validation_loss"));
  CAPTURE(validation);
  REQUIRE(validation.size() >= 3);
  for (size_t i = 1; i < validation.size(); ++i) CHECK(validation[i] < validation[i - 1]);
  // The frequencies of the 2,048 pieces alone give 6.0, chance 7.6.
  CHECK(validation.back() < 5.3);
}

}  // namespace osdn
