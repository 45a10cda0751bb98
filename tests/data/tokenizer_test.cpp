#include "data/tokenizer.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "base/fs.h"
#include "data/builtin_corpus.h"
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

TEST_CASE("Cutting a text where no piece spans the cut equals encoding it whole", "[tokenizer]") {
  const std::string text =
      tokenizer_test::corpus_text(60).substr(0, 150'000);  // more than two pieces of 64 KB
  REQUIRE(text.size() > 130'000);
  SECTION("own BPE") {
    const Tokenizer& tokenizer = tokenizer_test::own(config::TokenizerType::kBpe);
    CHECK(tokenizer.encode(text) == tokenizer_test::library_encode(tokenizer, text));
    std::string dense;  // no spaces at all
    for (const char character : text.substr(0, 70'000))
      if (character != ' ' && character != '\n') dense += character;
    CHECK(tokenizer.encode(dense) == tokenizer_test::library_encode(tokenizer, dense));
  }
  SECTION("own unigram") {
    // Short enough that the library's float32 sums have not lost their last bits.
    const Tokenizer& tokenizer = tokenizer_test::own(config::TokenizerType::kUnigram);
    const std::string part = text.substr(0, 300);
    CHECK(tokenizer.encode(part) == tokenizer_test::library_encode(tokenizer, part));
  }
  SECTION("a BPE model with a dummy prefix and kept spaces, as Llama's") {
    const Tokenizer tokenizer = tokenizer_test::foreign({{"byte_fallback", "true"},
                                                         {"normalization_rule_name", "identity"},
                                                         {"remove_extra_whitespaces", "false"}});
    CHECK_FALSE(tokenizer.lossless());
    for (const std::string& sample : {text, std::string(" a"), std::string("a "), std::string("a  b "),
                                      std::string("a  "), std::string("  "), std::string("x y\n z")}) {
      CAPTURE(sample.substr(0, 20));
      CHECK(tokenizer.encode(sample) == tokenizer_test::library_encode(tokenizer, sample));
    }
    CHECK(tokenizer.decode(tokenizer.encode("Mara has  two")) == "Mara has  two");
  }
  SECTION("a unigram model with a dummy prefix, in pieces of 64 KB") {
    const Tokenizer tokenizer = tokenizer_test::foreign({{"model_type", "unigram"},
                                                         {"byte_fallback", "true"},
                                                         {"normalization_rule_name", "identity"},
                                                         {"remove_extra_whitespaces", "false"}});
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
    CHECK(tokenizer.encode(text.substr(0, 2000)) ==
          tokenizer_test::library_encode(tokenizer, text.substr(0, 2000)));
  }
  SECTION("a model that normalises is never cut") {
    const Tokenizer tokenizer = tokenizer_test::foreign({});
    CHECK_FALSE(tokenizer.lossless());
    CHECK(tokenizer.encode(text) == tokenizer_test::library_encode(tokenizer, text));
  }
  SECTION("a model without byte pieces joins unknown characters") {
    const Tokenizer tokenizer = tokenizer_test::foreign(
        {{"normalization_rule_name", "identity"}, {"remove_extra_whitespaces", "false"}});
    const std::string unknown = "a \xE4\xB8\xAD\xE6\x96\x87 \xE4\xB8\xAD b";
    CHECK(tokenizer.encode(unknown) == tokenizer_test::library_encode(tokenizer, unknown));
  }
}

TEST_CASE("A long text without any place to cut is encoded all the same", "[tokenizer]") {
  const Tokenizer& tokenizer = tokenizer_test::own(config::TokenizerType::kBpe);
  const std::string text(200'000, 'e');
  CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
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
  CHECK_THROWS_AS(Tokenizer::load(path), EnvironmentError);
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
