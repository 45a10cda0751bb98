#include "data/tokenizer.h"

#include <sentencepiece_trainer.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "base/fs.h"
#include "data/builtin_corpus.h"
#include "data/detail/division.h"
#include "data/sample_order.h"
#include "data/train_tokenizer.h"
#include "tests/data/support.h"
#include "tests/support/catch.h"

namespace osdn::data {
namespace tokenizer_test {

std::string corpus_text(int64_t documents) {
  std::string text;
  for (int64_t i = 0; i < documents; ++i) text += builtin_document(kBuiltinSeed, i);
  return text;
}

Tokenizer train(const std::vector<std::string>& documents, config::TokenizerType type, int64_t vocab_size) {
  TrainingSample sample;
  for (const std::string& document : documents) sample.add(sample.cut(document));
  return train_tokenizer(sample, {.type = type, .vocab_size = vocab_size});
}

const Tokenizer& own(config::TokenizerType type) {
  static const std::vector<std::string> documents = {
      corpus_text(40), "int main() {\n    return 0;\n}\n\n\tif (x)\r\n        y();\r\n",
      "\xE4\xB8\xAD\xE6\x96\x87\xE6\x96\x87\xE6\x9C\xAC \xC3\xA9\xC3\xA8"};
  static const Tokenizer bpe = train(documents, config::TokenizerType::kBpe, 700);
  static const Tokenizer unigram = train(documents, config::TokenizerType::kUnigram, 500);
  return type == config::TokenizerType::kBpe ? bpe : unigram;
}

/// A model as other tools make them, with the given arguments on top of a small default.
Tokenizer foreign(std::unordered_map<std::string, std::string> arguments) {
  const TemporaryDirectory folder;
  atomic_write(folder.path() + "/text", corpus_text(40));
  arguments.insert({{"input", folder.path() + "/text"},
                    {"model_type", "bpe"},
                    {"vocab_size", "500"},
                    {"minloglevel", "2"}});
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, nullptr, &model);
  INFO(status.ToString());
  REQUIRE(status.ok());
  return Tokenizer::from_model(model);
}

std::vector<int32_t> library_encode(const Tokenizer& tokenizer, const std::string& text) {
  sentencepiece::SentencePieceProcessor processor;
  REQUIRE(processor.LoadFromSerializedProto(tokenizer.model_bytes()).ok());
  std::vector<int> ids;
  REQUIRE(processor.Encode(text, &ids).ok());
  return {ids.begin(), ids.end()};
}

/// Arguments of a model that changes no character and keeps all spaces.
std::unordered_map<std::string, std::string> kept_spaces(const std::string& type,
                                                         const std::string& dummy_prefix) {
  return {{"model_type", type},
          {"byte_fallback", "true"},
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"add_dummy_prefix", dummy_prefix}};
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeepsFreedMemory = true;
#else
constexpr bool kKeepsFreedMemory = false;
#endif

size_t peak_memory_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

/// Texts of more than one part of 64 KB: prose, code, runs, texts without spaces and of other scripts,
/// random ones.
std::vector<std::pair<std::string, std::string>> long_texts() {
  constexpr size_t kBytes = 70'000;
  const std::string prose = corpus_text(80).substr(0, kBytes);
  std::string dense;
  for (const char character : prose)
    if (character != ' ' && character != '\n') dense += character;
  std::string code;
  std::string chinese;
  std::string random;
  std::string spaces;
  std::string letters;
  const std::vector<std::string> parts = {"a",
                                          "b",
                                          "<mask>",
                                          "of the",
                                          "the",
                                          "e",
                                          "\xE4\xB8\xAD",
                                          "\xE6\x96\x87",
                                          " ",
                                          "  ",
                                          "\n",
                                          "\xC3\xA9",
                                          "e\xCC\x81",
                                          "\xF0\x9F\x98\x80",
                                          "\t",
                                          "\xE3\x80\x80",
                                          "\xEF\xBC\xA1",
                                          "\xC2\xA8",
                                          "\xE2\x80\x8B"};
  uint64_t state = 17;
  while (code.size() < kBytes)
    code += "\tif (x" + std::to_string(mix64(++state) % 1000) + " == 0) {\n        y();\r\n    }\n";
  while (chinese.size() < kBytes) {
    const uint64_t c = 0x4E00 + mix64(++state) % 300;
    chinese += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
                static_cast<char>(0x80 | (c & 0x3F))};
  }
  while (random.size() < kBytes) random += parts[mix64(++state) % parts.size()];
  while (spaces.size() < kBytes) spaces += std::string(mix64(++state) % 900, ' ') + "the";
  while (letters.size() < kBytes) letters += "etaoin"[mix64(++state) % 6];
  return {{"prose", prose},
          {"dense prose", dense},
          {"code", code},
          {"Chinese", chinese},
          {"random", random},
          {"spaces", spaces},
          {"only spaces", std::string(kBytes, ' ')},
          {"only newlines", std::string(kBytes, '\n')},
          {"one letter", std::string(kBytes, 'e')},
          {"random letters", letters}};
}

/// Every kind of UTF-8 that has ever been lost by a tokenizer.
std::vector<std::string> oddities() {
  std::vector<std::string> texts = {
      "",
      " ",
      "a  b",
      "  x",
      "x  ",
      "x\t\ty",
      "\n",
      "\n\n\n",
      "a\rb",
      "a\r\nb\r\n",
      "\xEF\xBB\xBFthe",
      "\xEF\xBC\x92\xE2\x80\xA6\xEF\xB8\xB0",
      "\xE2\x96\x81",
      "\xE2\x96\x81\xE2\x96\x81 \xE2\x96\x81x\xE2\x96\x81 ",
      "a \xE2\x96\x81"
      "b",
      "\xE2\x96\x85 lower five eighths",
      "\xE2\x81\x87 and <unk>",
      std::string("nul\0in \0\0the middle\0", 20),
      "\xEF\xBF\xBD replacement",
      "\xEF\xBF\xBE\xEF\xBF\xBF nonchars",
      "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7 family",
      "e\xCC\x81 combining and \xC3\xA9 composed",
      "\xF4\x8F\xBF\xBF last",
      "\xC2\xA0no-break\xE3\x80\x80wide",
      "\xE2\x80\xA8line and paragraph\xE2\x80\xA9",
      "<s> </s> <unk> <pad> <0x41><0x0A>",
      "trailing space ",
      std::string(3000, ' ') + "x" + std::string(3000, '\n'),
  };
  std::string all;
  for (char32_t c = 0; c < 0x3000; ++c) {
    if (c < 0x80) {
      all += static_cast<char>(c);
    } else if (c < 0x800) {
      all += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
    } else {
      all += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
              static_cast<char>(0x80 | (c & 0x3F))};
    }
  }
  texts.push_back(all);
  return texts;
}

}  // namespace tokenizer_test

TEST_CASE("Own tokenizers give any valid UTF-8 back exactly", "[tokenizer]") {
  for (const auto type : {config::TokenizerType::kBpe, config::TokenizerType::kUnigram}) {
    const Tokenizer& tokenizer = tokenizer_test::own(type);
    CHECK(tokenizer.lossless());
    CHECK_FALSE(tokenizer.text_reaches_control_ids());
    for (const std::string& text : tokenizer_test::oddities()) {
      CAPTURE(text.substr(0, 60));
      const std::vector<int32_t> ids = tokenizer.encode(text);
      CHECK(tokenizer.decode(ids) == text);
      std::string pieces;
      bool control = false;
      for (const int32_t id : ids) {
        pieces += tokenizer.piece_bytes(id);
        control =
            control || id == tokenizer.bos_id() || id == tokenizer.eos_id() || id == tokenizer.unknown_id();
      }
      CHECK(pieces == text);
      CHECK_FALSE(control);
    }
  }
}

TEST_CASE("Random mixtures of odd characters round-trip", "[tokenizer]") {
  const std::vector<std::string> parts = {" ",
                                          "  ",
                                          "\xE2\x96\x81",
                                          "\n",
                                          "\r",
                                          "\t",
                                          std::string(1, '\0'),
                                          "a",
                                          "the",
                                          "<s>",
                                          "\xE2\x96\x85",
                                          "\xE4\xB8\xAD",
                                          "\xF0\x9F\x98\x80",
                                          "12",
                                          ".",
                                          "Mara"};
  uint64_t state = 0;
  for (const auto type : {config::TokenizerType::kBpe, config::TokenizerType::kUnigram}) {
    const Tokenizer& tokenizer = tokenizer_test::own(type);
    int64_t wrong = 0;
    for (int i = 0; i < 500; ++i) {
      std::string text;
      for (int k = 0; k < 40; ++k) text += parts[mix64(++state) % parts.size()];
      wrong += tokenizer.decode(tokenizer.encode(text)) != text ? 1 : 0;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("Long texts of every kind encode as the library encodes them whole", "[tokenizer]") {
  struct Model {
    std::string name;
    Tokenizer tokenizer;
  };
  std::vector<Model> models;
  models.push_back(
      {"own BPE", Tokenizer::from_model(tokenizer_test::own(config::TokenizerType::kBpe).model_bytes())});
  models.push_back({"as Llama's", tokenizer_test::foreign(tokenizer_test::kept_spaces("bpe", "true"))});
  models.push_back(
      {"with user-defined symbols, one of two words",
       tokenizer_test::foreign({{"byte_fallback", "true"},
                                {"normalization_rule_name", "identity"},
                                {"remove_extra_whitespaces", "false"},
                                {"user_defined_symbols", "<mask>,ee,of the,\xE4\xB8\xAD\xE6\x96\x87"}})});
  models.push_back({"that normalises", tokenizer_test::foreign({})});
  models.push_back(
      {"that normalises and folds case", tokenizer_test::foreign({{"normalization_rule_name", "nfkc_cf"}})});
  models.push_back({"without a dummy prefix", tokenizer_test::foreign({{"add_dummy_prefix", "false"}})});
  models.push_back({"without byte pieces", tokenizer_test::foreign({{"normalization_rule_name", "identity"},
                                                                    {"remove_extra_whitespaces", "false"}})});
  models.push_back(
      {"with spaces after words", tokenizer_test::foreign({{"treat_whitespace_as_suffix", "true"}})});
  for (const Model& model : models) {
    for (const auto& [name, text] : tokenizer_test::long_texts()) {
      CAPTURE(model.name, name, text.size());
      const std::vector<int32_t> ids = model.tokenizer.encode(text);
      CHECK((ids == tokenizer_test::library_encode(model.tokenizer, text)));
      // As several threads would do it.
      std::vector<int32_t> joined;
      for (const detail::TextPart& part : model.tokenizer.parts(text))
        model.tokenizer.encode_part(part, &joined);
      CHECK((joined == ids));
    }
  }
}

TEST_CASE("Short texts with odd characters encode as the library encodes them", "[tokenizer]") {
  const Tokenizer llama = tokenizer_test::foreign(tokenizer_test::kept_spaces("bpe", "true"));
  CHECK_FALSE(llama.lossless());
  CHECK(llama.losses() == "a written U+2581 becomes a space");
  std::vector<std::string> texts = tokenizer_test::oddities();
  texts.insert(texts.end(), {" a", "a ", "a  b ", "a  ", "  ", "x y\n z"});
  for (const std::string& text : texts) {
    CAPTURE(text.substr(0, 20));
    CHECK((llama.encode(text) == tokenizer_test::library_encode(llama, text)));
  }
  CHECK(llama.decode(llama.encode("Mara has  two")) == "Mara has  two");
}

TEST_CASE("A long text is divided unless its model forbids it", "[tokenizer]") {
  const std::string text = tokenizer_test::corpus_text(60);
  REQUIRE(text.size() > 2 * 64 * 1024);
  const auto longest = [&](const Tokenizer& tokenizer) {
    size_t bytes = 0;
    for (const detail::TextPart& part : tokenizer.parts(text)) bytes = std::max(bytes, part.text.size());
    return bytes;
  };
  CHECK(longest(tokenizer_test::own(config::TokenizerType::kBpe)) < 66'000);
  CHECK(longest(tokenizer_test::own(config::TokenizerType::kUnigram)) < 66'000);
  CHECK(longest(tokenizer_test::foreign({})) <= 64 * 1024);
  CHECK(longest(tokenizer_test::foreign(tokenizer_test::kept_spaces("unigram", "true"))) <= 64 * 1024);
  // A symbol that holds a space could span the cut.
  CHECK(longest(tokenizer_test::foreign({{"user_defined_symbols", "of the"}})) == text.size());
}

TEST_CASE("Unigram models give the library's ids where its sums have not lost their last bits",
          "[tokenizer]") {
  const std::string text = tokenizer_test::corpus_text(1);
  const Tokenizer& own = tokenizer_test::own(config::TokenizerType::kUnigram);
  CHECK(own.encode(text.substr(0, 300)) == tokenizer_test::library_encode(own, text.substr(0, 300)));
  const Tokenizer kept = tokenizer_test::foreign(tokenizer_test::kept_spaces("unigram", "true"));
  const std::string all = tokenizer_test::corpus_text(60);
  CHECK(kept.decode(kept.encode(all)) == all);
  CHECK(kept.encode(all.substr(0, 60'000)) == tokenizer_test::library_encode(kept, all.substr(0, 60'000)));
}

TEST_CASE("A text without any place to cut is encoded in bounded memory, or refused with its length",
          "[tokenizer]") {
  const Tokenizer& own = tokenizer_test::own(config::TokenizerType::kBpe);
  std::string text;
  uint64_t state = 5;
  while (text.size() < 3'000'000) text += "etaoinshr"[mix64(++state) % 9];
  const size_t before = tokenizer_test::peak_memory_bytes();
  const std::vector<int32_t> ids = own.encode(text);
  // The library alone would take 87 bytes for each byte, 260 MB. AddressSanitizer keeps what was freed, so
  // that its builds say nothing about memory.
  if (!tokenizer_test::kKeepsFreedMemory) CHECK(tokenizer_test::peak_memory_bytes() - before < 120'000'000);
  CHECK((own.decode(ids) == text));
  const Tokenizer& unigram = tokenizer_test::own(config::TokenizerType::kUnigram);
  CHECK((unigram.decode(unigram.encode(text)) == text));
  const std::string message =
      test::message_of<UserError>([&] { tokenizer_test::foreign({}).encode(text + text + text); });
  CAPTURE(message);
  CHECK(test::contains(message,
                       "9000000 bytes without a place where this tokenizer lets it be cut (a space between"));
}

TEST_CASE("Models that lose something say what", "[tokenizer]") {
  CHECK(tokenizer_test::foreign({}).losses() ==
        "characters are normalised, leading, trailing and repeated spaces are removed, unknown characters "
        "are lost, a "
        "written U+2581 becomes a space");
  CHECK(tokenizer_test::own(config::TokenizerType::kBpe).losses().empty());
}

TEST_CASE("Control words that are user symbols are noticed", "[tokenizer]") {
  CHECK(tokenizer_test::foreign({{"user_defined_symbols", "</s>"}}).text_reaches_control_ids());
  CHECK_FALSE(tokenizer_test::foreign({{"user_defined_symbols", "<mask>"}}).text_reaches_control_ids());
}

TEST_CASE("Many threads encode the same", "[tokenizer]") {
  const Tokenizer& tokenizer = tokenizer_test::own(config::TokenizerType::kBpe);
  const std::string text = tokenizer_test::corpus_text(3);
  const std::vector<int32_t> wanted = tokenizer.encode(text);
  std::vector<std::vector<int32_t>> results(8);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = tokenizer.encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) CHECK(result == wanted);
}

TEST_CASE("Two tokenizers used in turn do not mix their segments", "[tokenizer]") {
  const Tokenizer& bpe = tokenizer_test::own(config::TokenizerType::kBpe);
  const Tokenizer& unigram = tokenizer_test::own(config::TokenizerType::kUnigram);
  const std::string text = "Mara lives in Tolver.";
  const auto first = bpe.encode(text);
  const auto second = unigram.encode(text);
  CHECK(bpe.encode(text) == first);
  CHECK(unigram.encode(text) == second);
  CHECK(first != second);
}

TEST_CASE("Invalid text, ids and files are refused", "[tokenizer]") {
  const Tokenizer& tokenizer = tokenizer_test::own(config::TokenizerType::kBpe);
  for (const std::string bad : {"ab\xC3", "\x80", "\xC0\x80", "\xED\xBF\xBF", "\xF5\x80\x80\x80"})
    CHECK(test::contains(test::message_of<UserError>([&] { tokenizer.encode(bad); }),
                         "expected valid UTF-8, found byte 0x"));
  CHECK_THROWS_AS(tokenizer.decode({0, 700}), UserError);
  CHECK_THROWS_AS(tokenizer.decode({-1}), UserError);
  CHECK_THROWS_AS(tokenizer.piece_bytes(700), UserError);
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/t.model";
  CHECK_THROWS_AS(Tokenizer::load(path), UserError);
  for (const std::string& content : {std::string(), std::string("not a model"), std::string(100, '\0'),
                                     tokenizer.model_bytes().substr(0, 3001)}) {
    atomic_write(path, content);
    const std::string message = test::message_of<DataError>([&] { Tokenizer::load(path); });
    CAPTURE(content.size(), message);
    CHECK(test::contains(message, "t.model: "));
  }
  atomic_write(path, tokenizer.model_bytes());
  const Tokenizer loaded = Tokenizer::load(path);
  CHECK(loaded.digest() == tokenizer.digest());
  CHECK(loaded.vocab_size() == 700);
}

TEST_CASE("The special pieces of own tokenizers have fixed ids", "[tokenizer]") {
  const Tokenizer& tokenizer = tokenizer_test::own(config::TokenizerType::kUnigram);
  CHECK(tokenizer.unknown_id() == 0);
  CHECK(tokenizer.bos_id() == 1);
  CHECK(tokenizer.eos_id() == 2);
  CHECK(tokenizer.pad_id() == -1);
  CHECK(tokenizer.decode({1, 2}).empty());
}

}  // namespace osdn::data
