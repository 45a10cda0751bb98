// What must hold of a serialised sentencepiece model before the library gets it. The library believes the
// offsets inside a model's compiled character map and the nesting of its symbols, and reads or writes outside
// of its buffers when they are wrong; a model comes from outside and may be damaged or hostile.
#pragma once

#include <string>
#include <string_view>

namespace osdn::data::detail {

/// Why the library must not load this model, or nothing: a message that is no protobuf, pieces that are
/// empty, longer than 4,096 bytes, hold NUL, or have a score that is not finite; types outside of their
/// ranges; more than 64 user-defined symbols that begin each other; a character map whose trie leaves its
/// array, meets itself, or yields more than 32 matches at once, or whose replacements lie outside or are
/// longer than 256 bytes.
std::string sentencepiece_fault(std::string_view model_bytes);

}  // namespace osdn::data::detail
