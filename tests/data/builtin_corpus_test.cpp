#include "data/builtin_corpus.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "base/hash.h"
#include "tests/support/catch.h"

namespace osdn::data {

TEST_CASE("The built-in corpus is the same bytes on every machine", "[builtin_corpus]") {
  StreamingDigest digest;
  for (int64_t i = 0; i < 100; ++i) {
    const std::string document = builtin_document(kBuiltinSeed, i);
    digest.update(document.data(), document.size());
  }
  CHECK(digest.value().hex() == "83c79a1c9f6f8a19168e637357ac68db");
}

TEST_CASE("Built-in documents differ by seed and index", "[builtin_corpus]") {
  std::set<std::string> documents;
  for (int64_t i = 0; i < 500; ++i) {
    documents.insert(builtin_document(1, i));
    documents.insert(builtin_document(2, i));
  }
  CHECK(documents.size() == 1000);
}

TEST_CASE("Built-in documents are ASCII text of 100 to 2,000 words from a small vocabulary",
          "[builtin_corpus]") {
  std::set<std::string> vocabulary;
  int64_t shortest = 1 << 20;
  int64_t longest = 0;
  bool printable = true;
  for (int64_t i = 0; i < 1000; ++i) {
    std::istringstream words(builtin_document(kBuiltinSeed, i));
    int64_t count = 0;
    for (std::string word; words >> word; ++count) {
      printable =
          printable && std::all_of(word.begin(), word.end(), [](char c) { return c > ' ' && c < 127; });
      word.erase(std::remove_if(word.begin(), word.end(),
                                [](char c) { return std::string(".,?").find(c) != std::string::npos; }),
                 word.end());
      vocabulary.insert(word);
    }
    shortest = std::min(shortest, count);
    longest = std::max(longest, count);
  }
  CHECK(printable);
  CHECK(shortest >= 100);
  CHECK(longest <= 2100);
  CHECK(longest >= 1500);
  CHECK(vocabulary.size() > 400);
  CHECK(vocabulary.size() < 800);
}

TEST_CASE("Answers in the built-in corpus can be found earlier in the same document", "[builtin_corpus]") {
  // "What is the house number of X? The number of X is V." or "... It is V.": V stands before the question.
  int64_t asked = 0;
  int64_t known = 0;
  int64_t near = 0;
  for (int64_t i = 0; i < 300; ++i) {
    const std::string text = builtin_document(kBuiltinSeed, i);
    for (const std::string question : {"What is the house number of ", "At which number does "}) {
      for (size_t at = text.find(question); at != std::string::npos; at = text.find(question, at + 1)) {
        const size_t answer = text.find('?', at) + 2;
        const std::string sentence = text.substr(answer, text.find('.', answer) - answer);
        const std::string value = sentence.substr(sentence.rfind(' ') + 1);
        const size_t stated = text.rfind(value, at);
        ++asked;
        known += stated != std::string::npos ? 1 : 0;
        near += stated != std::string::npos && at - stated < 1000 ? 1 : 0;
      }
    }
  }
  CHECK(asked > 300);
  CHECK(known == asked);
  CHECK(near > asked / 2);  // within about 250 tokens
  CHECK(near < asked);      // and some only further back
}

}  // namespace osdn::data
