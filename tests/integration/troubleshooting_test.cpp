// docs/howto/troubleshooting.md quotes the program's messages: each quote must still be one.
#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "base/fs.h"
#include "tests/support/catch.h"

namespace osdn::test {
namespace troubleshooting_test {

/// All sources as one text in which string literals that follow each other are joined.
std::string messages_of_the_sources() {
  std::string text;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(std::string(OSDN_SOURCE_DIR) + "/src"))
    if (entry.path().extension() == ".cpp" || entry.path().extension() == ".h")
      text += read_file(entry.path().string());
  std::string joined;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      const size_t next = text.find_first_not_of(" \n", i + 1);
      if (next != std::string::npos && next > i + 1 && text[next] == '"' && text.find('\n', i) < next) {
        i = next;  // the end of a line's literal and the begin of the next one's
        continue;
      }
    }
    joined += text[i];
  }
  return joined;
}

/// The quotes in the first column of the page's tables.
std::vector<std::string> quotes() {
  std::vector<std::string> result;
  std::istringstream page(read_file(std::string(OSDN_SOURCE_DIR) + "/docs/howto/troubleshooting.md"));
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    const size_t end = line.find("` |");
    REQUIRE(end != std::string::npos);
    result.push_back(line.substr(3, end - 3));
  }
  return result;
}

/// What stands between the "..." of a quote.
std::vector<std::string> fixed_words(std::string quote) {
  std::vector<std::string> words;
  for (size_t dots = quote.find("..."); dots != std::string::npos; dots = quote.find("...")) {
    words.push_back(quote.substr(0, dots));
    quote.erase(0, dots + 3);
  }
  words.push_back(quote);
  words.erase(std::remove_if(words.begin(), words.end(),
                             [](const std::string& part) {
                               return part.find_first_not_of(" ,:;)") == std::string::npos;
                             }),
              words.end());
  return words;
}

}  // namespace troubleshooting_test

TEST_CASE("Every message that the troubleshooting page quotes is one of the program's", "[troubleshooting]") {
  const std::string sources = troubleshooting_test::messages_of_the_sources();
  const std::vector<std::string> quotes = troubleshooting_test::quotes();
  CHECK(quotes.size() > 40);
  for (const std::string& quote : quotes) {
    const auto words = troubleshooting_test::fixed_words(quote);
    CHECK(!words.empty());
    for (const std::string& part : words) {
      INFO("\"" << part << "\" of \"" << quote << "\"");
      CHECK(sources.find(part) != std::string::npos);
    }
  }
}

}  // namespace osdn::test
