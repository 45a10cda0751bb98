#include "data/train_tokenizer.h"

#include <algorithm>

#include "data/builtin_corpus.h"
#include "tests/data/support.h"
#include "tests/support/catch.h"

namespace osdn::data {
namespace train_tokenizer_test {

std::vector<std::string> documents(int64_t count) {
  std::vector<std::string> list;
  for (int64_t i = 0; i < count; ++i) list.push_back(builtin_document(kBuiltinSeed, i));
  return list;
}

Tokenizer train(const std::vector<std::string>& texts, int64_t vocab_size,
                config::TokenizerType type = config::TokenizerType::kBpe) {
  TrainingSample sample;
  for (const std::string& text : texts) sample.add(sample.cut(text));
  return train_tokenizer(sample, {.type = type, .vocab_size = vocab_size});
}

}  // namespace train_tokenizer_test

TEST_CASE("Training twice, and on documents in another order, gives equal bytes", "[train_tokenizer]") {
  std::vector<std::string> texts = train_tokenizer_test::documents(60);
  for (const auto type : {config::TokenizerType::kBpe, config::TokenizerType::kUnigram}) {
    const std::string once = train_tokenizer_test::train(texts, 500, type).model_bytes();
    CHECK(train_tokenizer_test::train(texts, 500, type).model_bytes() == once);
    std::vector<std::string> reversed(texts.rbegin(), texts.rend());
    CHECK(train_tokenizer_test::train(reversed, 500, type).model_bytes() == once);
  }
}

TEST_CASE("Long lines are split, not skipped", "[train_tokenizer]") {
  std::vector<std::string> texts(100, "short line");
  std::string spaced;
  while (spaced.size() < 5000) spaced += "zebra quagga ";
  texts.push_back(spaced);
  std::string dense;
  while (dense.size() < 70'000) dense += "xylophone";
  texts.push_back(dense);
  const Tokenizer tokenizer = train_tokenizer_test::train(texts, 310);
  CHECK(tokenizer.encode(" zebra").size() == 1);     // only in the line of 5,000 bytes
  CHECK(tokenizer.encode("xylophone").size() <= 2);  // only in the line of 70,000 characters
  const Tokenizer only_long = train_tokenizer_test::train({dense}, 280);
  CHECK(only_long.decode(only_long.encode(dense)) == dense);
}

TEST_CASE("Stretches keep every byte but the reserved characters, within 4 KB", "[train_tokenizer]") {
  const TrainingSample sample;
  std::string text = "a \xE2\x96\x81 b" + std::string(1, '\0') + "c\xE2\x96\x85";
  for (int i = 0; i < 2000; ++i) text += i % 3 == 0 ? " word" : "\xC3\xA9\xF0\x9F\x98\x80";
  std::string joined;
  for (const TrainingStretch& stretch : sample.cut(text)) {
    CHECK(stretch.text.size() <= 4096);
    CHECK_FALSE(test::contains(stretch.text, "\xE2\x96\x81"));
    CHECK_FALSE(test::contains(stretch.text, "\xE2\x96\x85"));
    joined += stretch.text;
  }
  CHECK(joined == "a  bc" + text.substr(text.find(" word")));
}

TEST_CASE("A bounded sample depends on the content, not on the order", "[train_tokenizer]") {
  const std::vector<std::string> texts = train_tokenizer_test::documents(200);
  TrainingSample forward(100'000);
  TrainingSample backward(100'000);
  for (const std::string& text : texts) forward.add(forward.cut(text));
  for (auto text = texts.rbegin(); text != texts.rend(); ++text) backward.add(backward.cut(*text));
  CHECK(forward.size_bytes() <= 100'000);
  CHECK(forward.size_bytes() > 90'000);
  const auto a = forward.sorted();
  const auto b = backward.sorted();
  CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end(),
                   [](const TrainingStretch& x, const TrainingStretch& y) { return x.text == y.text; }));
}

TEST_CASE("Vocabularies that do not fit the text are refused with the numbers that would",
          "[train_tokenizer]") {
  const std::vector<std::string> texts = train_tokenizer_test::documents(5);
  const auto refusal = [&](int64_t vocab_size, config::TokenizerType type) {
    return test::message_of<UserError>([&] { train_tokenizer_test::train(texts, vocab_size, type); });
  };
  for (const auto type : {config::TokenizerType::kBpe, config::TokenizerType::kUnigram}) {
    const std::string message = refusal(100'000, type);
    CAPTURE(message);
    const std::string before = "100000 is too large for this text, which gives at most ";
    REQUIRE(test::contains(message, before));
    const int64_t largest = std::stoll(message.substr(message.find(before) + before.size()));
    CHECK(train_tokenizer_test::train(texts, largest, type).vocab_size() == largest);
    CHECK(test::contains(refusal(10, type), "vocab_size: expected at least 260"));
    const std::string small = refusal(270, type);
    CAPTURE(small);
    const std::string raise = "(raise it to ";
    REQUIRE(test::contains(small, raise));
    const int64_t smallest = std::stoll(small.substr(small.find(raise) + raise.size()));
    CHECK(train_tokenizer_test::train(texts, smallest, type).vocab_size() == smallest);
  }
}

TEST_CASE("Text that gives nothing to train on is refused, not an abort", "[train_tokenizer]") {
  const std::string nothing = "prepare.tokenizer: expected text to train on, found none";
  CHECK(test::contains(test::message_of<UserError>([] { train_tokenizer_test::train({}, 300); }), nothing));
  CHECK(test::contains(test::message_of<UserError>([] {
                         train_tokenizer_test::train({"", "\xE2\x96\x81"}, 300);
                       }),
                       nothing));
  for (const std::string text : {"a", " ", "\n", "\t", "\t\t\n", "7"}) {
    CAPTURE(text);
    for (const auto type : {config::TokenizerType::kBpe, config::TokenizerType::kUnigram})
      CHECK_THROWS_AS(train_tokenizer_test::train({text}, 300, type), UserError);
  }
}

TEST_CASE("Text without spaces, tabs or control words trains a lossless model", "[train_tokenizer]") {
  const std::string dense = "abcabcabdabdabeabe";
  const Tokenizer tokenizer =
      train_tokenizer_test::train({dense, "<s></s><unk><0x41>\t\t", "\t\ttab\ttab"}, 285);
  CHECK(tokenizer.lossless());
  for (const std::string text : {"a b", " ", "\t", "<s>", "\xE2\x96\x81 "})
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
}

}  // namespace osdn::data
