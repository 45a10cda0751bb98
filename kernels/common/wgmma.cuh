// Warpgroup matrix products of compute capability 9.0 (wgmma): the A operand and the sums in registers of
// four warps, the B operand in shared memory. Fragments are those of common/mma.cuh: warp w of the group has
// rows 16w .. 16w+15, and `acc[n]` are its columns 8n .. 8n+7.
//
// Calls are asynchronous. Order of use: `wgmma_fence` once registers are ready, products, `wgmma_commit`, and
// `wgmma_wait` before their sums are read or their A fragments changed.
#pragma once

#include "kernels/common/tile.cuh"
#include "kernels/common/wgmma_instructions.cuh"

namespace osdn::kernels {

/// What the tensor cores need to know of an operand in shared memory.
class WgmmaOperand {
 public:
  /// Strides in bytes as the instruction set defines them for the layout; `swizzled`: in rows of 128 bytes,
  /// of a tile aligned to 1024 bytes. Otherwise 8x8 blocks as they are.
  __device__ WgmmaOperand(uint32_t address, uint32_t leading_stride, uint32_t stride, bool swizzled)
      : low_((address >> 4) + (leading_stride >> 4 << 16)),
        high_((stride >> 4) + (swizzled ? 1u << 30 : 0u)) {}

  /// The operand `bytes` further on.
  __device__ uint64_t at(uint32_t bytes) const {
    return static_cast<uint64_t>(high_) << 32 | static_cast<uint64_t>(low_ + (bytes >> 4));
  }

 private:
  uint32_t low_;
  uint32_t high_;
};

/// Rows of the operand are the 64 rows of a tile, k its channels (not transposed); channel k0 lies at
/// `wgmma_row_step(k0)`.
template <int Columns>
__device__ WgmmaOperand wgmma_rows(const RowTile<Columns>& tile) {
  return {tile.base, 16, 1024, true};
}
constexpr uint32_t wgmma_row_step(int k0) { return (k0 >> 6) * RowTile<64>::kPanelBytes + (k0 & 63) * 2; }

/// Rows of the operand are the channels of a tile from `first` (a multiple of 64) on, k its rows
/// (transposed). Row k0 lies at k0 * 128.
template <int Columns>
__device__ WgmmaOperand wgmma_columns(const RowTile<Columns>& tile, int first = 0) {
  return {tile.base + (first >> 6) * RowTile<Columns>::kPanelBytes, RowTile<Columns>::kPanelBytes, 1024,
          true};
}

/// The same of a tile of 8x8 blocks, `first` a multiple of 8. Row k0 lies at k0 * Columns * 2.
template <int Columns>
__device__ WgmmaOperand wgmma_columns(const BlockTile<Columns>& tile, int first = 0) {
  return {tile.base + (first >> 3) * 128, Columns / 8 * 128, 128, false};
}

/// acc += a b with bf16 operands; with fp16 operands. `b` is the operand's place (WgmmaOperand::at).
template <int N, bool kTransposed>
__device__ void wgmma_bf16(float (&acc)[N / 8][4], const uint32_t (&a)[4], uint64_t b) {
  wgmma_detail::Product<N, kTransposed, false>::run(acc, a, b);
}
template <int N, bool kTransposed>
__device__ void wgmma_fp16(float (&acc)[N / 8][4], const uint32_t (&a)[4], uint64_t b) {
  wgmma_detail::Product<N, kTransposed, true>::run(acc, a, b);
}

/// acc += a b, bf16, both in shared memory, b transposed.
template <int N, bool kTransposedA>
__device__ void wgmma_bf16(float (&acc)[N / 8][4], uint64_t a, uint64_t b) {
  wgmma_detail::SharedProduct<N, kTransposedA>::run(acc, a, b);
}

}  // namespace osdn::kernels
