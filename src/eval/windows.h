// How the targets of a document divide into windows, each scored exactly once.
#pragma once

#include <cstdint>
#include <vector>

namespace osdn::eval {

// A document of n + 1 tokens, bos first, has n targets: target i is token i + 1, predicted from tokens up to
// i.

/// The model reads tokens begin .. end-1 from an empty state and is scored on targets first .. end-1; targets
/// begin .. first-1 are context that an earlier window has scored.
struct Window {
  int64_t begin = 0;
  int64_t first = 0;
  int64_t end = 0;
  bool operator==(const Window&) const = default;
};

/// Windows of at most `window` tokens, each but the first scoring the next `stride` targets with the
/// window - stride tokens before them as further context (the last one, when it scores fewer, with as much
/// more as fits). stride == window: disjoint blocks. window 0: one window, the whole document. The first
/// window alone begins with bos. Nothing for n = 0.
std::vector<Window> plan_windows(int64_t num_targets, int64_t window, int64_t stride);

}  // namespace osdn::eval
