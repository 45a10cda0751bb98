#include "eval/windows.h"

#include "base/error.h"
#include "tests/support/catch.h"

namespace osdn::eval {
namespace windows_test {

TEST_CASE("every target is scored exactly once, with the context that was asked for", "[windows]") {
  for (const int64_t length : {1, 2, 1023, 1024, 1025, 2048, 2500})
    for (const int64_t overlap : {0, 1, 512, 1023}) {
      INFO(length << " targets, overlap " << overlap);
      const int64_t stride = 1024 - overlap;
      std::vector<int64_t> scored(static_cast<size_t>(length));
      bool fits = true;
      bool whole_context = true;
      for (const Window& window : plan_windows(length, 1024, stride)) {
        fits = fits && 0 <= window.begin && window.begin <= window.first && window.first < window.end &&
               window.end <= length && window.end - window.begin <= 1024 &&
               (window.begin == 0 || window.end - window.first <= stride);
        for (int64_t target = window.first; target < window.end; ++target) {
          ++scored[static_cast<size_t>(target)];
          // The target's own input and at least `overlap` more, unless the document begins earlier.
          whole_context = whole_context && (window.begin == 0 || target - window.begin >= overlap);
        }
      }
      CHECK(fits);
      CHECK(whole_context);
      CHECK(scored == std::vector<int64_t>(static_cast<size_t>(length), 1));
    }
}

/// Catch2 cannot print windows.
bool equal(const std::vector<Window>& found, const std::vector<Window>& expected) {
  return found == expected;
}

TEST_CASE("windows are where they are documented to be", "[windows]") {
  CHECK(equal(plan_windows(10, 4, 4), {{0, 0, 4}, {4, 4, 8}, {6, 8, 10}}));
  CHECK(equal(plan_windows(8, 4, 4), {{0, 0, 4}, {4, 4, 8}}));
  CHECK(equal(plan_windows(10, 4, 3), {{0, 0, 4}, {3, 4, 7}, {6, 7, 10}}));
  CHECK(equal(plan_windows(6, 4, 1), {{0, 0, 4}, {1, 4, 5}, {2, 5, 6}}));
  CHECK(equal(plan_windows(1'000'000, 0, 0), {{0, 0, 1'000'000}}));
  CHECK(plan_windows(0, 4, 4).empty());
  CHECK(plan_windows(0, 0, 0).empty());
}

TEST_CASE("a stride that would leave targets out is refused", "[windows]") {
  CHECK_THROWS_AS(plan_windows(10, 4, 5), UserError);
  CHECK_THROWS_AS(plan_windows(10, 4, 0), UserError);
  CHECK_THROWS_AS(plan_windows(10, -4, 1), UserError);
}

}  // namespace windows_test
}  // namespace osdn::eval
