#include "data/prepare.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <unordered_map>

#include "base/fs.h"
#include "base/json.h"
#include "data/builtin_corpus.h"
#include "data/sample_order.h"
#include "data/shard.h"
#include "data/tokenizer.h"
#include "tests/data/support.h"
#include "tests/support/catch.h"

namespace osdn::data {
namespace prepare_test {

std::set<std::string> visible_files(const std::string& folder) {
  std::set<std::string> names;
  if (!std::filesystem::exists(folder)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (const std::string name = entry.path().filename().string(); name.front() != '.') names.insert(name);
  return names;
}

config::Prepare builtin(const std::string& output) {
  config::Prepare settings;
  settings.builtin = true;
  settings.builtin_megabytes = 1;
  settings.output = output;
  settings.validation_fraction = 0.05;
  settings.tokenizer.vocab_size = 800;
  return settings;
}

/// Texts of the documents of some shards, decoded, after checking that each starts with bos.
std::vector<std::string> documents_in(const std::vector<std::string>& shards, const Tokenizer& tokenizer) {
  std::vector<std::string> texts;
  for (const std::string& path : shards) {
    const ShardReader reader(path);
    CHECK(reader.tokenizer_digest() == tokenizer.digest());
    reader.verify();
    const std::vector<int64_t>& offsets = reader.document_offsets();
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      std::vector<int32_t> tokens(static_cast<size_t>(offsets[i + 1] - offsets[i]));
      reader.read(offsets[i], offsets[i + 1] - offsets[i], tokens.data());
      REQUIRE(tokens.front() == tokenizer.bos_id());
      REQUIRE(tokens.size() > 1);
      tokens.erase(tokens.begin());
      texts.push_back(tokenizer.decode(tokens));
      CHECK(static_cast<int64_t>(texts.back().size()) == reader.document_bytes()[i]);
    }
  }
  return texts;
}

struct Fixture {
  TemporaryDirectory folder;
  std::string output = folder.path() + "/shards";
  std::string write(const std::string& name, const std::string& content) const {
    atomic_write(folder.path() + "/" + name, content);
    return folder.path() + "/" + name;
  }
};

}  // namespace prepare_test

TEST_CASE("The built-in corpus becomes shards that hold every document once", "[prepare]") {
  const prepare_test::Fixture data;
  config::Prepare settings = prepare_test::builtin(data.output);
  settings.shard_tokens = 60'000;
  int64_t reports = 0;
  std::string last_stage;
  PrepareOptions options;
  options.progress = [&](const PrepareProgress& progress) {
    ++reports;
    last_stage = progress.stage;
    CHECK(progress.bytes_done >= 0);
  };
  const PrepareReport report = prepare(settings, options);
  CHECK(reports > 3);
  CHECK(last_stage == "encoding");
  CHECK(report.train.shards.size() > 2);
  CHECK(prepare_test::visible_files(data.output).size() ==
        report.train.shards.size() + report.validation.shards.size() + 2);
  const Tokenizer tokenizer = Tokenizer::load(report.tokenizer_model);
  CHECK(tokenizer.vocab_size() == 800);
  const auto train = prepare_test::documents_in(report.train.shards, tokenizer);
  const auto validation = prepare_test::documents_in(report.validation.shards, tokenizer);
  CHECK(static_cast<int64_t>(train.size()) == report.train.documents);
  CHECK(static_cast<int64_t>(validation.size()) == report.validation.documents);
  std::set<std::string> all(train.begin(), train.end());
  all.insert(validation.begin(), validation.end());
  CHECK(all.size() == train.size() + validation.size());
  bool every = true;
  for (size_t i = 0; i < all.size(); ++i)
    every = every && all.count(builtin_document(kBuiltinSeed, static_cast<int64_t>(i))) == 1;
  CHECK(every);
  // The split by hash: 5 % of about 300 documents.
  CHECK(report.validation.documents >= 5);
  CHECK(report.validation.documents <= 40);
  for (const std::string& shard : report.train.shards) CHECK(ShardReader(shard).num_tokens() <= 60'000);
  const Json json = read_json(data.output + "/prepare.json");
  CHECK(json.at("train").at("tokens") == report.train.tokens);
  CHECK(json.at("bytes_per_token").get<double>() > 3.0);
}

TEST_CASE("The built-in corpus always has validation documents", "[prepare]") {
  const prepare_test::Fixture data;
  config::Prepare settings = prepare_test::builtin(data.output);
  settings.validation_fraction = 1e-9;
  CHECK(prepare(settings, {}).validation.documents == 1);
  settings.output = data.folder.path() + "/none";
  settings.validation_fraction = 0;
  const PrepareReport report = prepare(settings, {});
  CHECK(report.validation.documents == 0);
  CHECK(report.validation.shards.empty());
}

TEST_CASE("Files of both formats are prepared with a given tokenizer and with eos", "[prepare]") {
  const prepare_test::Fixture data;
  config::Prepare settings = prepare_test::builtin(data.output);
  const std::string model = prepare(settings, {}).tokenizer_model;
  const std::string lines =
      "{\"text\": \"first </s> line\"}\n{\"text\": \"\"}\n{\"text\": \" \\n\\t\\ufeff\"}\n{\"text\": "
      "\"\\u2581\"}\n{\"text\": \"</s>\"}\n";
  config::Prepare files;
  files.input = {data.write("a.jsonl", lines), data.write("b.txt", "\xEF\xBB\xBFsecond\r\nfile")};
  files.output = data.folder.path() + "/files";
  files.tokenizer_model = model;
  files.validation_fraction = 0;
  files.add_eos = true;
  const PrepareReport report = prepare(files, {});
  CHECK(report.train.documents == 4);
  CHECK(report.dropped_documents == 2);
  CHECK(read_file(report.tokenizer_model) == read_file(model));
  const Tokenizer tokenizer = Tokenizer::load(model);
  CHECK(prepare_test::documents_in(report.train.shards, tokenizer) ==
        std::vector<std::string>{"first </s> line", "\xE2\x96\x81", "</s>", "second\nfile"});
  // Control ids stand only where preparation put them: one bos and one eos a document.
  const ShardReader reader(report.train.shards.front());
  std::vector<int32_t> tokens(static_cast<size_t>(reader.num_tokens()));
  reader.read(0, reader.num_tokens(), tokens.data());
  CHECK(std::count(tokens.begin(), tokens.end(), tokenizer.bos_id()) == 4);
  CHECK(std::count(tokens.begin(), tokens.end(), tokenizer.eos_id()) == 4);
  for (size_t i = 1; i < reader.document_offsets().size(); ++i)
    CHECK(tokens[static_cast<size_t>(reader.document_offsets()[i]) - 1] == tokenizer.eos_id());
}

TEST_CASE("Foreign models are taken as they are, and what they change is counted", "[prepare]") {
  const prepare_test::Fixture data;
  std::string lines;
  for (int i = 0; i < 400; ++i)
    lines += "{\"text\": \"document  number " + std::to_string(i) + " has \\uff21 wide letter\"}\n";
  config::Prepare settings;
  settings.input = {data.write("a.jsonl", lines)};
  settings.output = data.output;
  settings.validation_fraction = 0;
  settings.add_eos = true;
  const auto model = [&](std::unordered_map<std::string, std::string> arguments) {
    arguments.insert({{"input", data.write("words.txt", "document number has a wide letter\n0123456789\n")},
                      {"model_type", "bpe"},
                      {"vocab_size", "300"},
                      {"byte_fallback", "true"},
                      {"minloglevel", "2"}});
    std::string bytes;
    REQUIRE(sentencepiece::SentencePieceTrainer::Train(arguments, nullptr, &bytes).ok());
    return data.write("foreign.model", bytes);
  };
  settings.tokenizer_model = model({{"bos_id", "5"}, {"eos_id", "7"}, {"pad_id", "9"}});
  const PrepareReport report = prepare(settings, {});
  CHECK(read_file(report.tokenizer_model) == read_file(*settings.tokenizer_model));
  CHECK(report.checked_documents > 0);
  CHECK(report.changed_documents ==
        report.checked_documents);  // two spaces became one, the wide letter narrow
  const ShardReader reader(report.train.shards.front());
  std::vector<int32_t> tokens(static_cast<size_t>(reader.num_tokens()));
  reader.read(0, reader.num_tokens(), tokens.data());
  CHECK(tokens.front() == 5);
  CHECK(tokens.back() == 7);
  CHECK(std::count(tokens.begin(), tokens.end(), 5) == 400);
  CHECK(std::count(tokens.begin(), tokens.end(), 7) == 400);
  CHECK(std::count(tokens.begin(), tokens.end(), 9) == 0);
  // The original's bytes count.
  CHECK(reader.document_bytes()[0] ==
        static_cast<int64_t>(std::string("document  number 0 has xxx wide letter").size()));

  // Without normalisation all of it comes back.
  settings.tokenizer_model =
      model({{"normalization_rule_name", "identity"}, {"remove_extra_whitespaces", "false"}});
  settings.output = data.folder.path() + "/kept";
  CHECK(prepare(settings, {}).changed_documents == 0);

  settings.output = data.folder.path() + "/refused";
  settings.tokenizer_model = model({{"bos_id", "-1"}});
  CHECK(test::contains(test::message_of<UserError>([&] { prepare(settings, {}); }),
                       "foreign.model: expected a tokenizer with a bos piece"));
  settings.tokenizer_model = model({{"eos_id", "-1"}});
  CHECK(test::contains(test::message_of<UserError>([&] { prepare(settings, {}); }),
                       "prepare.add_eos needs a tokenizer with an eos piece"));
  CHECK_FALSE(std::filesystem::exists(settings.output));
}

TEST_CASE("Equal documents fall on one side of the split", "[prepare]") {
  const prepare_test::Fixture data;
  std::string lines;
  for (int copy = 0; copy < 3; ++copy)
    for (int i = 0; i < 60; ++i)
      lines += "{\"text\": \"document number " + std::to_string(i) + " says some words\"}\n";
  config::Prepare settings;
  settings.input = {data.write("a.jsonl", lines)};
  settings.output = data.output;
  settings.validation_fraction = 0.3;
  settings.tokenizer.vocab_size = 290;
  const PrepareReport report = prepare(settings, {});
  const Tokenizer tokenizer = Tokenizer::load(report.tokenizer_model);
  const auto train = prepare_test::documents_in(report.train.shards, tokenizer);
  const auto validation = prepare_test::documents_in(report.validation.shards, tokenizer);
  REQUIRE(train.size() + validation.size() == 180);
  CHECK(validation.size() > 10);
  const std::set<std::string> train_texts(train.begin(), train.end());
  int64_t shared = 0;
  for (const std::string& text : validation) shared += train_texts.count(text) != 0 ? 1 : 0;
  CHECK(shared == 0);
}

TEST_CASE("A folder is reused for the same request and protected from another", "[prepare]") {
  const prepare_test::Fixture data;
  config::Prepare settings = prepare_test::builtin(data.output);
  const PrepareReport first = prepare(settings, {});
  const std::string shard = read_file(first.train.shards[0]);
  const PrepareReport second = prepare(settings, {});
  CHECK_FALSE(first.already_done);
  CHECK(second.already_done);
  CHECK(second.train.tokens == first.train.tokens);
  CHECK(second.validation.shards == first.validation.shards);
  config::Prepare other = settings;
  other.tokenizer.vocab_size = 700;
  const std::string message = test::message_of<UserError>([&] { prepare(other, {}); });
  CAPTURE(message);
  CHECK(test::contains(message, "holds shards of another preparation (vocab_size: 800 -> 700"));
  CHECK(test::contains(message, "--overwrite"));
  CHECK(read_file(first.train.shards[0]) == shard);
  other.shard_tokens = 50'000;
  CHECK(prepare(other, {.overwrite = true}).train.shards.size() > 1);
  // Back to one shard: those of the other set go.
  CHECK(prepare(settings, {.overwrite = true}).train.shards.size() == 1);
  CHECK(read_file(first.train.shards[0]) == shard);
  CHECK(prepare_test::visible_files(data.output) ==
        std::set<std::string>{"train-00000.h5", "valid-00000.h5", "tokenizer.model", "prepare.json"});
  // Shards that nothing describes are not ours to replace.
  std::filesystem::remove(data.output + "/prepare.json");
  CHECK(test::contains(test::message_of<UserError>([&] { prepare(settings, {}); }),
                       "holds shards without a prepare.json"));
  // A shard that was damaged since is named instead of being called done.
  prepare(settings, {.overwrite = true});
  atomic_write(first.train.shards[0], shard.substr(0, shard.size() / 2));
  CHECK(test::contains(test::message_of<DataError>([&] { prepare(settings, {}); }),
                       "train-00000.h5: truncated"));
}

TEST_CASE("Changed input files are not taken for the old ones", "[prepare]") {
  const prepare_test::Fixture data;
  config::Prepare settings;
  settings.input = {data.write("a.txt", builtin_document(1, 0))};
  settings.output = data.output;
  settings.validation_fraction = 0;
  settings.tokenizer.vocab_size = 310;
  prepare(settings, {});
  CHECK(prepare(settings, {}).already_done);
  data.write("a.txt", builtin_document(1, 1));
  CHECK(test::contains(test::message_of<UserError>([&] { prepare(settings, {}); }), "the input files"));
  CHECK_FALSE(prepare(settings, {.overwrite = true}).already_done);
}

TEST_CASE("An interrupted renaming is finished by the next call", "[prepare]") {
  const prepare_test::Fixture data;
  config::Prepare settings = prepare_test::builtin(data.output);
  settings.shard_tokens = 60'000;
  const PrepareReport report = prepare(settings, {});
  // As if the process had died after it moved the first file.
  std::filesystem::create_directories(data.output + "/.prepare");
  for (const std::string& name : prepare_test::visible_files(data.output))
    if (name != "train-00000.h5")
      std::filesystem::rename(data.output + "/" + name, data.output + "/.prepare/" + name);
  const PrepareReport again = prepare(settings, {});
  CHECK(again.already_done);
  CHECK(again.train.shards == report.train.shards);
}

TEST_CASE("Two preparations into one folder do not mix", "[prepare]") {
  const prepare_test::Fixture data;
  std::filesystem::create_directories(data.output);
  std::string holder;
  const auto lock = FileLock::try_acquire(data.output + "/.prepare.lock", &holder);
  REQUIRE(lock);
  const std::string message =
      test::message_of<UserError>([&] { prepare(prepare_test::builtin(data.output), {}); });
  CAPTURE(message);
  CHECK(test::contains(message, "is preparing into this folder"));
}

TEST_CASE("Wrong preparation settings are refused by key", "[prepare]") {
  const prepare_test::Fixture data;
  const auto refusal = [&](auto change) {
    config::Prepare settings = prepare_test::builtin(data.output);
    change(settings);
    return test::message_of<Error>([&] { prepare(settings, {}); });
  };
  CHECK(test::contains(refusal([](auto& s) { s.builtin = false; }),
                       "expected either input files or the built-in corpus, got neither"));
  CHECK(test::contains(refusal([](auto& s) { s.input = {"x.txt"}; }), "got both"));
  CHECK(test::contains(refusal([](auto& s) { s.validation_fraction = 1.0; }),
                       "prepare.validation_fraction: expected"));
  CHECK(test::contains(refusal([](auto& s) { s.shard_tokens = 0; }),
                       "prepare.shard_tokens: expected 1 to 268435456"));
  CHECK(test::contains(refusal([](auto& s) { s.output = ""; }), "prepare.output: expected a folder"));
  CHECK(test::contains(refusal([](auto& s) { s.workers = -1; }), "prepare.workers: expected"));
  CHECK(test::contains(refusal([](auto& s) { s.tokenizer_model = "/nowhere.model"; }),
                       "/nowhere.model: cannot open"));
  CHECK(test::contains(refusal([](auto& s) { s.tokenizer.vocab_size = 1'000'000; }),
                       "too large for this text, which gives at most"));
  const std::string bad = data.write("bad.jsonl", "{\"text\": \"fine\"}\n{\"text\": }\n");
  CHECK(test::contains(refusal([&](auto& s) {
                         s.builtin = false;
                         s.input = {bad};
                       }),
                       "bad.jsonl:2: expected one JSON object a line"));
  CHECK(prepare_test::visible_files(data.output).empty());
  const std::string empty = data.write("empty.txt", " \n");
  CHECK(test::contains(refusal([&](auto& s) {
                         s.builtin = false;
                         s.input = {empty};
                       }),
                       "expected text to train on, found none"));
}

}  // namespace osdn::data
