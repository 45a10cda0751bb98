// Stores of two and four words in one instruction: left alone, the compiler at times splits them.
// tests/emulation has the same functions in C++ for a CPU.
#pragma once

#include <cstdint>

namespace osdn::kernels {

/// `target`: in global memory, aligned to 8 bytes.
__device__ inline void store_words(void* target, uint32_t a, uint32_t b) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(target)), "r"(a), "r"(b)
               : "memory");
}

/// `target`: aligned to 16 bytes.
__device__ inline void store_words(void* target, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

}  // namespace osdn::kernels
