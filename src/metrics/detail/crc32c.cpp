#include "metrics/detail/crc32c.h"

#include <array>

namespace osdn::metrics::detail {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  constexpr uint32_t kPolynomial = 0x82F63B78u;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) != 0 ? kPolynomial : 0u);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

}  // namespace

uint32_t crc32c(std::string_view data) {
  uint32_t value = 0xFFFFFFFFu;
  for (const char c : data) value = (value >> 8) ^ kCrcTable[(value ^ static_cast<unsigned char>(c)) & 0xFFu];
  return ~value;
}

uint32_t masked_crc32c(std::string_view data) {
  const uint32_t value = crc32c(data);
  return ((value >> 15) | (value << 17)) + 0xA282EAD8u;
}

}  // namespace osdn::metrics::detail
