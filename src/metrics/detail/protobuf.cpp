#include "metrics/detail/protobuf.h"

#include <cstring>

namespace osdn::metrics::detail {
namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

void append_varint(std::string& bytes, uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7F) | 0x80);
  bytes += static_cast<char>(value);
}

void append_tag(std::string& bytes, uint32_t field, WireType type) {
  append_varint(bytes, uint64_t{field} << 3 | type);
}

}  // namespace

void append_fixed32(std::string& bytes, uint32_t value) {
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
}

void append_fixed64(std::string& bytes, uint64_t value) {
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
}

void append_varint_field(std::string& message, uint32_t field, uint64_t value) {
  append_tag(message, field, kVarint);
  append_varint(message, value);
}

void append_float_field(std::string& message, uint32_t field, float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  append_tag(message, field, kFixed32);
  append_fixed32(message, bits);
}

void append_double_field(std::string& message, uint32_t field, double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  append_tag(message, field, kFixed64);
  append_fixed64(message, bits);
}

void append_bytes_field(std::string& message, uint32_t field, std::string_view value) {
  append_tag(message, field, kLengthDelimited);
  append_varint(message, value.size());
  message.append(value);
}

}  // namespace osdn::metrics::detail
