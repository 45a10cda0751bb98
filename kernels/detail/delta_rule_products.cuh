// The matrix products of the scans, on the tensor cores of one warp (any GPU from compute capability 8.0) or
// of a warpgroup (9.0): the same operands and sums in registers, the other operand in shared memory.
#pragma once

#include "kernels/common/wgmma.cuh"
#include "kernels/detail/delta_rule_chunk.cuh"

namespace osdn::kernels {

/// Products of one warp's 16 rows: done when the call returns.
struct WarpProducts {
  using Triangle = TriangleTile;
  static constexpr int kTriangleBytes = TriangleTile::kBytes;
  static constexpr bool kWarpgroup = false;
  static constexpr bool kAvailable = true;

  __device__ static void publish_shared() {}
  template <typename... Sums>
  __device__ static void begin(Sums&...) {}
  __device__ static void end() {}
  template <int Pending, int Blocks>
  __device__ static void wait(float (&)[Blocks][4]) {}

  /// out += rows times the transposed rows of `tile`: one column a token.
  template <int KP>
  __device__ static void add_times_rows(float (&out)[kChunk / 8][4], const uint32_t (&rows)[KP / 16][4],
                                        const RowTile<KP>& tile, int lane) {
#pragma unroll
    for (int k = 0; k < KP / 16; ++k) add_block_times_rows(out, rows[k], tile, k, lane);
  }

  /// The share of columns 16 block .. + 15 of the rows in it.
  template <int KP>
  __device__ static void add_block_times_rows(float (&out)[kChunk / 8][4], const uint32_t (&rows)[4],
                                              const RowTile<KP>& tile, int block, int lane) {
#pragma unroll
    for (int pair = 0; pair < kChunk / 16; ++pair) {
      uint32_t b[4];
      load_b_of_rows(b, tile, pair * 16, block * 16, lane);
      mma_bf16(out[2 * pair], rows, b[0], b[1]);
      mma_bf16(out[2 * pair + 1], rows, b[2], b[3]);
    }
  }

  /// out += rows times the transposed triangle.
  template <bool kHalf>
  __device__ static void add_times_lower(float (&out)[kChunk / 8][4], const uint32_t (&rows)[kChunk / 16][4],
                                         const TriangleTile& tile, int lane) {
#pragma unroll
    for (int pair = 0; pair < kChunk / 16; ++pair) {
#pragma unroll
      for (int k = 0; k <= pair; ++k) {
        uint32_t b[4];
        load_b_of_rows(b, tile, pair * 16, k * 16, lane);
        multiply<kHalf>(out[2 * pair], rows[k], b[0], b[1]);
        multiply<kHalf>(out[2 * pair + 1], rows[k], b[2], b[3]);
      }
    }
  }

  /// out += rows times the triangle.
  template <bool kHalf>
  __device__ static void add_times_upper(float (&out)[kChunk / 8][4], const uint32_t (&rows)[kChunk / 16][4],
                                         const TriangleTile& tile, int lane) {
#pragma unroll
    for (int pair = 0; pair < kChunk / 16; ++pair) {
#pragma unroll
      for (int k = pair; k < kChunk / 16; ++k) {
        uint32_t b[4];
        load_b_of_columns(b, tile, pair * 16, k * 16, lane);
        multiply<kHalf>(out[2 * pair], rows[k], b[0], b[1]);
        multiply<kHalf>(out[2 * pair + 1], rows[k], b[2], b[3]);
      }
    }
  }

  /// out += rows times `tile`, whose rows are tokens.
  template <int KP>
  __device__ static void add_outer(float (&out)[KP / 8][4], const uint32_t (&rows)[kChunk / 16][4],
                                   const RowTile<KP>& tile, int lane) {
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) {
#pragma unroll
      for (int pair = 0; pair < KP / 16; ++pair) {
        uint32_t b[4];
        load_b_of_columns(b, tile, pair * 16, k * 16, lane);
        mma_bf16(out[2 * pair], rows[k], b[0], b[1]);
        mma_bf16(out[2 * pair + 1], rows[k], b[2], b[3]);
      }
    }
  }

 private:
  template <bool kHalf>
  __device__ static void multiply(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (kHalf)
      mma_fp16(acc, a, b0, b1);
    else
      mma_bf16(acc, a, b0, b1);
  }
};

/// The same by a warpgroup, 64 rows: queued between `begin`, which is given the sums that they add to, and
/// `end`; done after `wait`.
struct WarpgroupProducts {
  using Triangle = RowTile<kChunk>;  // with zeros above the diagonal: sums of one shape need no order
  static constexpr int kTriangleBytes = kSquareBytes;
  static constexpr bool kWarpgroup = true;
  static constexpr bool kAvailable = OSDN_WGMMA != 0;  // in this pass of the compiler

  __device__ static void publish_shared() { wgmma_publish_shared(); }
  template <typename... Sums>
  __device__ static void begin(Sums&... sums) {
    (wgmma_pin(sums), ...);
    wgmma_fence();
  }
  __device__ static void end() { wgmma_commit(); }
  template <int Pending, int Blocks>
  __device__ static void wait(float (&sums)[Blocks][4]) {
    wgmma_pin(sums);
    wgmma_wait<Pending>();
    wgmma_pin(sums);
  }

  template <int KP>
  __device__ static void add_times_rows(float (&out)[kChunk / 8][4], const uint32_t (&rows)[KP / 16][4],
                                        const RowTile<KP>& tile, int) {
    const WgmmaOperand b = wgmma_rows(tile);
#pragma unroll
    for (int k = 0; k < KP / 16; ++k) wgmma_bf16<kChunk, false>(out, rows[k], b.at(wgmma_row_step(k * 16)));
  }

  template <bool kHalf>
  __device__ static void add_times_lower(float (&out)[kChunk / 8][4], const uint32_t (&rows)[kChunk / 16][4],
                                         const RowTile<kChunk>& tile, int) {
    const WgmmaOperand b = wgmma_rows(tile);
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) multiply<kHalf, false>(out, rows[k], b.at(wgmma_row_step(k * 16)));
  }

  template <bool kHalf>
  __device__ static void add_times_upper(float (&out)[kChunk / 8][4], const uint32_t (&rows)[kChunk / 16][4],
                                         const RowTile<kChunk>& tile, int) {
    const WgmmaOperand b = wgmma_columns(tile);
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) multiply<kHalf, true>(out, rows[k], b.at(k * 16 * 128));
  }

  template <int KP>
  __device__ static void add_outer(float (&out)[KP / 8][4], const uint32_t (&rows)[kChunk / 16][4],
                                   const RowTile<KP>& tile, int) {
    const WgmmaOperand b = wgmma_columns(tile);
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) wgmma_bf16<KP, true>(out, rows[k], b.at(k * 16 * 128));
  }

 private:
  template <bool kHalf, bool kTransposed>
  __device__ static void multiply(float (&out)[kChunk / 8][4], const uint32_t (&a)[4], uint64_t b) {
    if constexpr (kHalf)
      wgmma_fp16<kChunk, kTransposed>(out, a, b);
    else
      wgmma_bf16<kChunk, kTransposed>(out, a, b);
  }
};

}  // namespace osdn::kernels
