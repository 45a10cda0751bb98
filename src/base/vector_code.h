// Loops compiled twice: for the processor that the build targets, and for AVX2 with FMA, taken where the
// processor has them. The program stays one binary that runs everywhere.
#pragma once

namespace osdn {
namespace vector_code_detail {

#if defined(__x86_64__)
template <typename Body>
[[gnu::target("avx2,fma")]] void run_avx2(const Body& body) {
  body();
}

inline bool has_avx2() {
  static const bool kHas = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return kHas;
}
#else
template <typename Body>
void run_avx2(const Body& body) {
  body();
}

inline bool has_avx2() { return false; }
#endif

}  // namespace vector_code_detail

/// Runs `body`, a lambda marked __attribute__((always_inline)); so must be the functions with the loops that
/// it calls, or they keep the code of the build's target. One machine always takes the same of the two, so
/// its results repeat bit for bit; between the two they differ by rounding (FMA).
template <typename Body>
void run_vectorized(const Body& body) {
  if (vector_code_detail::has_avx2())
    vector_code_detail::run_avx2(body);
  else
    body();
}

}  // namespace osdn
