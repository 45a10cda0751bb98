// The text of one JSON line, taken without building the rest of the record: memory is the text, however deep
// or wide the record is.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/records.h"

namespace osdn::data::detail {

/// A record that can't become a document. `what()` says where, what was expected and what came.
class RecordError : public UserError {
 public:
  RecordError(RecordFault fault, const std::string& message) : UserError("{}", message), fault_(fault) {}
  RecordFault fault() const { return fault_; }

 private:
  RecordFault fault_;
};

/// What is wrong with the byte of `text` (a line, or whatever `unit` says) at `offset`, the first that is no
/// UTF-8.
std::string utf8_problem(std::string_view text, size_t offset, const char* unit);

/// `key`: a.b means field b of object a, unless a field is named just so; of several ways the one with fewer
/// steps counts, and of equal fields the last. `place` goes into messages. `open_ended`: the line is the last
/// and has no line end. Throws RecordError.
std::string text_of_json_line(std::string_view line, const std::string& key, const std::string& place,
                              bool open_ended);

}  // namespace osdn::data::detail
