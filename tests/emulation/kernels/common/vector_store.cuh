// kernels/common/vector_store.cuh for a CPU.
#pragma once

#include <cstdint>

namespace osdn::kernels {

inline void store_words(void* target, uint32_t a, uint32_t b) {
  auto* words = static_cast<uint32_t*>(target);
  words[0] = a;
  words[1] = b;
}
inline void store_words(void* target, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  store_words(target, a, b);
  store_words(static_cast<uint32_t*>(target) + 2, c, d);
}

}  // namespace osdn::kernels
