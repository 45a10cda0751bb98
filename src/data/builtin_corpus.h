// The corpus that the program makes itself: plain English documents about people and things, in which facts
// are stated, told again in other words, changed, and asked for later. Every value is drawn anew in each
// document, so only memory of the document predicts an answer. Integer arithmetic alone: the same bytes on
// every machine.
#pragma once

#include <cstdint>
#include <string>

namespace osdn::data {

constexpr int64_t kBuiltinSeed = 1;

/// Document `index` of the corpus: 100 to about 2,000 words. Any document can be made without those before
/// it.
std::string builtin_document(uint64_t seed, int64_t index);

}  // namespace osdn::data
