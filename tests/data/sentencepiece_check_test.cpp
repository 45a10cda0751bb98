// Models that would lead the sentencepiece library outside of its buffers.
#include "data/detail/sentencepiece_check.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/data/support.h"
#include "tests/support/catch.h"

namespace osdn::data {
namespace sentencepiece_check_test {

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes + static_cast<char>(value);
}
std::string field(uint64_t number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string field(uint64_t number, uint64_t value) { return varint(number << 3) + varint(value); }

std::string piece(const std::string& text, uint64_t type = 1, float score = -1) {
  std::string bytes(sizeof(score), '\0');
  std::memcpy(bytes.data(), &score, sizeof(score));
  return field(1, field(1, text) + varint(2 << 3 | 5) + bytes + field(3, type));
}

std::string model(const std::string& more) { return piece("<unk>", 2) + piece("a") + more; }

/// A character map of one rule: tab becomes what stands at `replacement` of " \0".
struct Map {
  // What is no child of any node looks like a value, which no byte matches.
  std::vector<uint32_t> units = std::vector<uint32_t>(512, 1U << 31);
  std::string replacements = std::string(" \0", 2);
  Map() {
    units[0] = 256U << 10;                                    // the root's children: at 256 ^ byte
    units[256 ^ 9] = ((256U ^ 9 ^ 300) << 10) | 1U << 8 | 9;  // below it: 300; a match ends here
    units[300] = 1U << 31;                                    // its replacement: at 0
  }
  std::string normalizer() const {
    std::string bytes(4 + 4 * units.size(), '\0');
    const auto size = static_cast<uint32_t>(4 * units.size());
    std::memcpy(bytes.data(), &size, 4);
    std::memcpy(bytes.data() + 4, units.data(), size);
    return field(3, field(2, bytes + replacements));
  }
  std::string fault() const { return detail::sentencepiece_fault(model(normalizer())); }
};

}  // namespace sentencepiece_check_test

TEST_CASE("A sound model and a sound character map pass", "[sentencepiece_check]") {
  namespace check = sentencepiece_check_test;
  CHECK(detail::sentencepiece_fault(check::model("")).empty());
  CHECK(check::Map().fault().empty());
}

TEST_CASE("Character maps that lead out of themselves are refused", "[sentencepiece_check]") {
  namespace check = sentencepiece_check_test;
  check::Map map;
  SECTION("a root that is elsewhere") {
    map.units[0] = 512U << 10;
    CHECK(test::contains(map.fault(), "outside of its array"));
  }
  SECTION("a node that is elsewhere") {
    map.units[256 ^ 9] = (0xFFFFU << 10) | 1U << 8 | 9;
    CHECK(test::contains(map.fault(), "outside of its array"));
  }
  SECTION("a node above itself") {
    map.units[256 ^ 9] = (9U << 10) | 1U << 8 | 9;
    CHECK(test::contains(map.fault(), "meets itself"));
  }
  SECTION("a replacement that is elsewhere") {
    map.units[300] = 1U << 31 | 2;
    CHECK(test::contains(map.fault(), "outside of it"));
  }
  SECTION("a replacement without end") {
    map.replacements = " ";
    CHECK(test::contains(map.fault(), "outside of it"));
  }
  SECTION("a replacement that is endless") {
    map.replacements = std::string(1000, 'x') + '\0';
    CHECK(test::contains(map.fault(), "replaces by 1000 bytes"));
  }
  SECTION("more matches than the library has room for") {
    // A chain of tabs, each a match: node i has its children at 256 * (i + 1).
    const uint32_t depth = GENERATE(32, 33);
    map.units.assign(256 * (depth + 3), 1U << 31);
    map.units[0] = 256U << 10;
    for (uint32_t i = 1; i <= depth; ++i) {
      const uint32_t here = 256 * i ^ 9;
      const uint32_t below = 256 * (i + 1);
      map.units[here] = ((here ^ below) << 10) | 1U << 8 | 9;
      map.units[below] = 1U << 31;
    }
    CHECK(map.fault().empty() == (depth == 32));
  }
  SECTION("a trie that is cut off") {
    std::string bytes = map.normalizer();
    const std::string spec = check::field(3, check::field(2, bytes.substr(bytes.size() - 2000)));
    CHECK_FALSE(detail::sentencepiece_fault(check::model(spec)).empty());
  }
}

TEST_CASE("Pieces and specifications that the library trusts are checked", "[sentencepiece_check]") {
  namespace check = sentencepiece_check_test;
  const auto fault = [](const std::string& more) { return detail::sentencepiece_fault(check::model(more)); };
  CHECK(test::contains(fault(check::piece(std::string("a\0b", 3))), "holds NUL"));
  CHECK(test::contains(fault(check::piece("")), "is empty"));
  CHECK(test::contains(fault(check::piece(std::string(5000, 'a'))), "5000 bytes"));
  CHECK(test::contains(fault(check::piece("b", 7)), "the type of a piece is 7 (piece 2)"));
  CHECK(test::contains(fault(check::piece("b", 1, std::numeric_limits<float>::quiet_NaN())), "not finite"));
  CHECK(test::contains(fault(check::field(2, check::field(3, 9))), "its model type is 9"));
  CHECK(test::contains(fault(check::field(2, uint64_t{1})), "of another type"));
  CHECK(test::contains(detail::sentencepiece_fault(""), "no pieces"));
  CHECK(test::contains(detail::sentencepiece_fault("\x0A\x7F"), "structure is damaged"));
  CHECK(test::contains(detail::sentencepiece_fault("\x0B"), "structure is damaged"));
  std::string nested;
  for (size_t length = 1; length <= 64; ++length) nested += check::piece(std::string(length, 'x'), 4);
  CHECK(fault(nested).empty());
  CHECK(test::contains(fault(nested + check::piece(std::string(65, 'x'), 4)),
                       "65 of its user-defined symbols"));
}

}  // namespace osdn::data
