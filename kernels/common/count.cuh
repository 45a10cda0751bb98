// Counting by a predicate: the compiler would select between two sums. tests/emulation has the same function
// in C++ for a CPU.
#pragma once

namespace osdn::kernels {

/// One more where `x` equals `a` or `b`.
__device__ inline void count_either(int& count, float x, float a, float b) {
  asm("{ .reg .pred first, any; setp.eq.f32 first, %1, %2; setp.eq.or.f32 any, %1, %3, first; "
      "@any add.s32 %0, %0, 1; }"
      : "+r"(count)
      : "f"(x), "f"(a), "f"(b));
}

}  // namespace osdn::kernels
