// kernels/common/wgmma_instructions.cuh for a CPU.
#pragma once

#include "kernels/common/mma.cuh"

#define OSDN_WGMMA 1

namespace osdn::kernels {

inline void wgmma_publish_shared() { emulation::races::proxy_fence(); }
inline void wgmma_fence() {}
using emulation::wgmma_commit;
template <int Pending>
void wgmma_wait() {
  emulation::wgmma_wait(Pending);
}
template <int Registers>
void take_registers() {}
template <int Registers>
void give_registers() {}
inline void store_blocks_transposed(uint32_t row_address, const uint32_t (&blocks)[4]) {
  using namespace emulation;
  warp().values[lane()] = row_address;
  meet_warp();
  for (int i = 0; i < 4; ++i)
    for (int column = 0; column < 2; ++column)
      write_shared_as<uint16_t>(warp().values[8 * i + lane() % 4 * 2 + column] + lane() / 4 * 2,
                                half_of(blocks[i], column));
  meet_warp();
}
template <int Blocks>
void wgmma_pin(float (&)[Blocks][4]) {}

namespace wgmma_detail {

template <int N, bool kTransposed, bool kHalf>
struct Product {
  static void run(float (&acc)[N / 8][4], const uint32_t (&a)[4], uint64_t b) {
    constexpr auto kFormat = kHalf ? emulation::Format::kFp16 : emulation::Format::kBf16;
    emulation::wgmma(acc, N / 8, a,
                     emulation::SharedOperand{.descriptor = b, .transposed = kTransposed, .format = kFormat});
  }
};

template <int N, bool kTransposedA>
struct SharedProduct {
  static void run(float (&acc)[N / 8][4], uint64_t a, uint64_t b) {
    emulation::wgmma(acc, N / 8, emulation::SharedOperand{.descriptor = a, .transposed = kTransposedA},
                     emulation::SharedOperand{.descriptor = b, .transposed = true});
  }
};

}  // namespace wgmma_detail
}  // namespace osdn::kernels
