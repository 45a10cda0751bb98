#include "eval/windows.h"

#include <algorithm>

#include "base/error.h"

namespace osdn::eval {

std::vector<Window> plan_windows(int64_t num_targets, int64_t window, int64_t stride) {
  if (num_targets <= 0) return {};
  if (window == 0) return {{.begin = 0, .first = 0, .end = num_targets}};
  if (window < 0) throw UserError("--window: expected a number of tokens or none, got {}", window);
  if (stride < 1 || stride > window)
    throw UserError("--stride: expected 1 to the window's {} tokens, got {}", window, stride);
  std::vector<Window> windows = {{.begin = 0, .first = 0, .end = std::min(window, num_targets)}};
  while (windows.back().end < num_targets) {
    const int64_t first = windows.back().end;
    const int64_t end = std::min(first + stride, num_targets);
    windows.push_back({.begin = std::max<int64_t>(0, end - window), .first = first, .end = end});
  }
  return windows;
}

}  // namespace osdn::eval
