#include "eval/document_source.h"

#include <sentencepiece_trainer.h>

#include <unordered_map>

#include "base/error.h"
#include "base/fs.h"
#include "data/shard.h"
#include "data/train_tokenizer.h"
#include "tests/support/test.h"

namespace osdn::eval {
namespace document_source_test {

std::string corpus() {
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += "The mill stands by the river and 12 boats pass it every morning, said the old man. \n";
  return text;
}

/// Lossless, as prepare trains it.
const data::Tokenizer& own_tokenizer() {
  static const data::Tokenizer tokenizer = [] {
    data::TrainingSample sample;
    sample.add(sample.cut(corpus()));
    return data::train_tokenizer(sample, {.type = config::TokenizerType::kBpe, .vocab_size = 320});
  }();
  return tokenizer;
}

/// As other tools make them by default: NFKC, spaces squeezed, a space put in front.
const data::Tokenizer& normalizing_tokenizer() {
  static const data::Tokenizer tokenizer = [] {
    const TemporaryDirectory folder;
    atomic_write(folder.path() + "/text", corpus());
    const std::unordered_map<std::string, std::string> arguments = {{"input", folder.path() + "/text"},
                                                                    {"model_type", "bpe"},
                                                                    {"vocab_size", "320"},
                                                                    {"byte_fallback", "true"},
                                                                    {"minloglevel", "2"}};
    std::string model;
    REQUIRE(sentencepiece::SentencePieceTrainer::Train(arguments, nullptr, &model).ok());
    return data::Tokenizer::from_model(model);
  }();
  return tokenizer;
}

std::vector<EvalDocument> read_all(DocumentSource& source) {
  std::vector<EvalDocument> documents;
  for (EvalDocument document; source.next(&document);) documents.push_back(document);
  CHECK(source.done_units() == source.total_units());
  return documents;
}

config::Prepare texts(const std::vector<std::string>& globs) {
  config::Prepare settings;
  settings.input = globs;
  return settings;
}

TEST_CASE("words are runs of characters that are not white space", "[document_source]") {
  CHECK(count_words("") == 0);
  CHECK(count_words(" \t\r\n\v\f") == 0);
  CHECK(count_words("one") == 1);
  CHECK(count_words("  one,  two\nthree ") == 3);
  // No-break space, en quad, line separator, ideographic space; zero width space and U+00E9 are none.
  CHECK(count_words("a\xC2\xA0"
                    "b\xE2\x80\x80"
                    "c\xE2\x80\xA8"
                    "d\xE3\x80\x80"
                    "e") == 5);
  CHECK(count_words("a\xE2\x80\x8B"
                    "b \xC3\xA9\xC3\xA0") == 2);
}

TEST_CASE("text files give their documents with the bytes and words of the text", "[document_source]") {
  const TemporaryDirectory folder;
  atomic_write(folder.path() + "/b.txt", "the old  mill\r\nby\tthe river");
  atomic_write(folder.path() + "/a.jsonl",
               "{\"text\": \"said the man\"}\n\n{\"text\": \" \\n\"}\n{\"text\": \"caf\\u00e9\"}\n");
  config::Prepare settings = texts({folder.path() + "/*.jsonl", folder.path() + "/b.txt"});
  settings.add_eos = true;
  const auto source = open_texts(settings, own_tokenizer());
  const std::vector<EvalDocument> documents = read_all(*source);
  REQUIRE(documents.size() == 3);  // the document without visible text is left out
  CHECK(documents[0].num_words == 3);
  CHECK(documents[0].text_bytes == 12);
  CHECK(documents[1].text_bytes == 5);
  CHECK(documents[2].num_words == 6);
  CHECK(documents[2].text_bytes == 26);
  CHECK(documents[2].name == folder.path() + "/b.txt#0");
  for (const EvalDocument& document : documents) {
    CHECK(document.tokens.front() == own_tokenizer().bos_id());
    CHECK(document.tokens.back() == own_tokenizer().eos_id());
  }
  CHECK(own_tokenizer().decode(documents[2].tokens) == "the old  mill\nby\tthe river");
  CHECK(source->num_changed() == 0);
  CHECK(source->paths().size() == 2);
}

TEST_CASE("bytes are those of the original text, and texts that a tokenizer changes are counted",
          "[document_source]") {
  // U+00DF, U+FB01, full-width digits, double spaces and tabs: what normalisation changes.
  const std::string text =
      "stra\xC3\x9F"
      "e  \xEF\xAC\x81"
      "sh\t\xEF\xBC\x91\xEF\xBC\x92 boats";
  const TemporaryDirectory folder;
  atomic_write(folder.path() + "/a.txt", text);
  atomic_write(folder.path() + "/b.txt", "the old man");
  const config::Prepare settings = texts({folder.path() + "/*.txt"});
  for (const data::Tokenizer* tokenizer : {&own_tokenizer(), &normalizing_tokenizer()}) {
    const auto source = open_texts(settings, *tokenizer);
    const std::vector<EvalDocument> documents = read_all(*source);
    REQUIRE(documents.size() == 2);
    CHECK(documents[0].text_bytes == static_cast<int64_t>(text.size()));
    CHECK(documents[0].num_words == 4);
    CHECK(documents[1].text_bytes == 11);
    CHECK(source->num_changed() == (tokenizer->lossless() ? 0 : 1));
  }
  CHECK(own_tokenizer().lossless());
  CHECK_FALSE(normalizing_tokenizer().lossless());
}

TEST_CASE("broken records stop the evaluation, or are skipped and counted", "[document_source]") {
  const TemporaryDirectory folder;
  atomic_write(folder.path() + "/a.jsonl", "{\"text\": \"one\"}\n{\"text\": 5}\n{\"text\": \"two\"}\n");
  config::Prepare settings = texts({folder.path() + "/a.jsonl"});
  const auto strict = open_texts(settings, own_tokenizer());
  EvalDocument document;
  CHECK_THROWS_AS(strict->next(&document), UserError);
  settings.on_error = "skip";
  const auto lenient = open_texts(settings, own_tokenizer());
  CHECK(read_all(*lenient).size() == 2);
  CHECK(lenient->num_skipped() == 1);
}

TEST_CASE("shards give their documents with the bytes that prepare stored", "[document_source]") {
  const TemporaryDirectory folder;
  const data::Tokenizer& tokenizer = own_tokenizer();
  const std::vector<std::string> written = {"the old man", "", "12 boats  pass"};
  for (const char* name : {"/v-0.h5", "/v-1.h5"}) {
    data::ShardWriter writer(folder.path() + name, {.tokenizer_digest = tokenizer.digest(),
                                                    .vocab_size = tokenizer.vocab_size(),
                                                    .source_names = {"test"}});
    for (const std::string& text : written) {
      std::vector<int32_t> tokens = tokenizer.encode(text);
      tokens.insert(tokens.begin(), tokenizer.bos_id());
      writer.add_document(tokens, static_cast<int64_t>(text.size()));
    }
    writer.finish();
  }
  const std::vector<std::string> globs = {folder.path() + "/v-*.h5"};
  const auto source = open_shards(globs, &tokenizer, tokenizer.vocab_size());
  const std::vector<EvalDocument> documents = read_all(*source);
  REQUIRE(documents.size() == 6);
  CHECK(documents[3].name == folder.path() + "/v-1.h5#0");
  CHECK(documents[5].num_words == 3);
  CHECK(documents[5].text_bytes == 14);
  CHECK(documents[1].tokens.size() == 1);
  CHECK(source->num_changed() == 0);
  EvalDocument document;
  const auto blind = open_shards(globs, nullptr, tokenizer.vocab_size());
  REQUIRE(blind->next(&document));
  CHECK_FALSE(document.num_words.has_value());
  CHECK_FALSE(blind->num_changed().has_value());

  CHECK_THROWS_AS(open_shards(globs, &tokenizer, 10), UserError);
  CHECK_THROWS_AS(open_shards(globs, &normalizing_tokenizer(), 1000), UserError);
  CHECK_THROWS_AS(open_shards({folder.path() + "/w-*.h5"}, &tokenizer, 1000), UserError);
}

}  // namespace document_source_test
}  // namespace osdn::eval
