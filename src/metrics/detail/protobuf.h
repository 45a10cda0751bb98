// The part of the protocol buffer wire format that event files need
// (docs/decisions/0001-event-files-without-protobuf.md). Each function appends one field to a message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace osdn::metrics::detail {

void append_fixed32(std::string& bytes, uint32_t value);  // little endian, without a tag
void append_fixed64(std::string& bytes, uint64_t value);  // little endian, without a tag

void append_varint_field(std::string& message, uint32_t field, uint64_t value);
void append_float_field(std::string& message, uint32_t field, float value);
void append_double_field(std::string& message, uint32_t field, double value);
void append_bytes_field(std::string& message, uint32_t field, std::string_view value);

}  // namespace osdn::metrics::detail
