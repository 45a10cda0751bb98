// The matrix products of the gradient pass of the delta rule for the 16 rows of a warp: on the warp's own
// tensor cores (any GPU from compute capability 8.0) or with the three other warps of its warpgroup (9.0).
// Warps 0-3 have the rows of dO, warps 4-7 those of F.
#pragma once

#include "kernels/detail/delta_rule_products.cuh"

namespace osdn::kernels {

/// dO [64, VT] as rows of tokens, F transposed [VT, 64] in 8x8 blocks.
template <int VT>
struct GradientRows {
  RowTile<VT> upstream;
  BlockTile<kChunk> solved;
};

/// Done when the call returns; what lies above the diagonal is left out.
struct WarpGradients {
  static constexpr bool kAvailable = true;

  __device__ static void publish_shared() {}
  template <typename... Sums>
  __device__ static void begin(Sums&...) {}
  __device__ static void end() {}
  template <int Pending, int Blocks>
  __device__ static void wait(float (&)[Blocks][4]) {}

  /// out[n] += the warp's rows of dO or F times E, columns 8n .. 8n+7 up to the warp's last row.
  template <int VT>
  __device__ static void add_times_error(float (&out)[kChunk / 8][4], const GradientRows<VT>& rows,
                                         const BlockTile<kChunk>& error, int warp, int lane) {
#pragma unroll 2
    for (int block = 0; block < VT / 16; ++block) {
      uint32_t a[4];
      own_rows(a, rows, block, warp, lane);
#pragma unroll
      for (int pair = 0; pair < kChunk / 16; ++pair) {
        if (pair > (warp & 3)) break;
        uint32_t b[4];
        load_b_of_columns(b, error, pair * 16, block * 16, lane);
        mma_bf16(out[2 * pair], a, b[0], b[1]);
        mma_bf16(out[2 * pair + 1], a, b[2], b[3]);
      }
    }
  }

  /// out += the warp's rows of dO or F times a state transposed [VT, KP].
  template <int KP, int VT>
  __device__ static void add_times_state(float (&out)[KP / 8][4], const GradientRows<VT>& rows,
                                         const BlockTile<KP>& state, int warp, int lane) {
#pragma unroll 2
    for (int block = 0; block < VT / 16; ++block) {
      uint32_t a[4];
      own_rows(a, rows, block, warp, lane);
      multiply_columns(out, a, state, 0, block, lane);
    }
  }

  /// of_upstream += dO, of_solved += F, the warp's sixteen tokens, times channels first_column .. + KP/2 - 1
  /// of a state transposed [VT, KP].
  template <int KP, int VT>
  __device__ static void add_both_times_state(float (&of_upstream)[KP / 16][4],
                                              float (&of_solved)[KP / 16][4], const GradientRows<VT>& rows,
                                              const BlockTile<KP>& state, int first_column, int warp,
                                              int lane) {
#pragma unroll 2
    for (int block = 0; block < VT / 16; ++block) {
      uint32_t upstream[4];
      uint32_t solved[4];
      load_a_of_rows(upstream, rows.upstream, (warp & 3) * 16, block * 16, lane);
      load_a_of_columns(solved, rows.solved, (warp & 3) * 16, block * 16, lane);
#pragma unroll
      for (int pair = 0; pair < KP / 32; ++pair) {
        uint32_t b[4];
        load_b_of_columns(b, state, first_column + pair * 16, block * 16, lane);
        mma_bf16(of_upstream[2 * pair], upstream, b[0], b[1]);
        mma_bf16(of_upstream[2 * pair + 1], upstream, b[2], b[3]);
        mma_bf16(of_solved[2 * pair], solved, b[0], b[1]);
        mma_bf16(of_solved[2 * pair + 1], solved, b[2], b[3]);
      }
    }
  }

  /// out += weights (A fragments of the warp's rows) times `tile`, whose rows are tokens.
  template <int KP>
  __device__ static void add_weighted(float (&out)[KP / 8][4], const uint32_t (&weights)[kChunk / 16][4],
                                      const RowTile<KP>& tile, int warp, int lane) {
#pragma unroll
    for (int block = 0; block < kChunk / 16; ++block) {
      if (block > (warp & 3)) break;
      multiply_columns(out, weights[block], tile, 0, block, lane);
    }
  }

  /// out += the warp's rows of E times channels first_column .. + KP/2 - 1 of a state transposed [VT, KP].
  template <int KP, int VT>
  __device__ static void add_error_times_state(float (&out)[KP / 16][4], const BlockTile<kChunk>& error,
                                               const BlockTile<KP>& state, int first_column, int warp,
                                               int lane) {
#pragma unroll 2
    for (int block = 0; block < VT / 16; ++block) {
      uint32_t a[4];
      load_a_of_columns(a, error, (warp & 3) * 16, block * 16, lane);
      multiply_columns(out, a, state, first_column, block, lane);
    }
  }

  /// out += the warp's columns of weights times channels first_column .. + KP/2 - 1 of `tile`.
  template <int KP>
  __device__ static void add_weighted_transposed(float (&out)[KP / 16][4], const BlockTile<kChunk>& weights,
                                                 const RowTile<KP>& tile, int first_column, int warp,
                                                 int lane) {
#pragma unroll
    for (int block = 0; block < kChunk / 16; ++block) {
      if (block < (warp & 3)) continue;
      uint32_t a[4];
      load_a_of_columns(a, weights, (warp & 3) * 16, block * 16, lane);
      multiply_columns(out, a, tile, first_column, block, lane);
    }
  }

 private:
  template <int VT>
  __device__ static void own_rows(uint32_t (&a)[4], const GradientRows<VT>& rows, int block, int warp,
                                  int lane) {
    if (warp < 4)
      load_a_of_rows(a, rows.upstream, warp * 16, block * 16, lane);
    else
      load_a_of_columns(a, rows.solved, (warp - 4) * 16, block * 16, lane);
  }
  /// out += a times rows 16 block .. + 15 of `tile`.
  template <int Blocks, class Tile>
  __device__ static void multiply_columns(float (&out)[Blocks][4], const uint32_t (&a)[4], const Tile& tile,
                                          int first_column, int block, int lane) {
#pragma unroll
    for (int pair = 0; pair < Blocks / 2; ++pair) {
      uint32_t b[4];
      load_b_of_columns(b, tile, first_column + pair * 16, block * 16, lane);
      mma_bf16(out[2 * pair], a, b[0], b[1]);
      mma_bf16(out[2 * pair + 1], a, b[2], b[3]);
    }
  }
};

/// The same by a warpgroup: queued between `begin` and `end`, done after `wait`. Weights are zero above the
/// diagonal, KP is 128.
struct WarpgroupGradients {
  static constexpr bool kAvailable = WarpgroupProducts::kAvailable;

  __device__ static void publish_shared() { WarpgroupProducts::publish_shared(); }
  template <typename... Sums>
  __device__ static void begin(Sums&... sums) {
    WarpgroupProducts::begin(sums...);
  }
  __device__ static void end() { WarpgroupProducts::end(); }
  template <int Pending, int Blocks>
  __device__ static void wait(float (&sums)[Blocks][4]) {
    WarpgroupProducts::wait<Pending>(sums);
  }

  template <int VT>
  __device__ static void add_times_error(float (&out)[kChunk / 8][4], const GradientRows<VT>& rows,
                                         const BlockTile<kChunk>& error, int warp, int) {
    multiply_rows<VT>(out, rows, wgmma_columns(error), kChunk * 2, warp);
  }

  template <int KP, int VT>
  __device__ static void add_times_state(float (&out)[KP / 8][4], const GradientRows<VT>& rows,
                                         const BlockTile<KP>& state, int warp, int) {
    multiply_rows<VT>(out, rows, wgmma_columns(state), KP * 2, warp);
  }

  template <int KP, int VT>
  __device__ static void add_both_times_state(float (&of_upstream)[KP / 16][4],
                                              float (&of_solved)[KP / 16][4], const GradientRows<VT>& rows,
                                              const BlockTile<KP>& state, int first_column, int, int) {
    const WgmmaOperand upstream = wgmma_rows(rows.upstream);
    const WgmmaOperand solved = wgmma_columns(rows.solved);
    const WgmmaOperand b = wgmma_columns(state, first_column);
#pragma unroll
    for (int k = 0; k < VT; k += 16)
      wgmma_bf16<KP / 2, false>(of_upstream, upstream.at(wgmma_row_step(k)), b.at(k * KP * 2));
#pragma unroll
    for (int k = 0; k < VT; k += 16)
      wgmma_bf16<KP / 2, true>(of_solved, solved.at(k * kChunk * 2), b.at(k * KP * 2));
  }

  template <int KP>
  __device__ static void add_weighted(float (&out)[KP / 8][4], const uint32_t (&weights)[kChunk / 16][4],
                                      const RowTile<KP>& tile, int, int lane) {
    WarpgroupProducts::add_outer(out, weights, tile, lane);
  }

  template <int KP, int VT>
  __device__ static void add_error_times_state(float (&out)[KP / 16][4], const BlockTile<kChunk>& error,
                                               const BlockTile<KP>& state, int first_column, int, int) {
    const WgmmaOperand a = wgmma_columns(error);
    const WgmmaOperand b = wgmma_columns(state, first_column);
#pragma unroll
    for (int k = 0; k < VT; k += 16) wgmma_bf16<KP / 2, true>(out, a.at(k * kChunk * 2), b.at(k * KP * 2));
  }

  template <int KP>
  __device__ static void add_weighted_transposed(float (&out)[KP / 16][4], const BlockTile<kChunk>& weights,
                                                 const RowTile<KP>& tile, int first_column, int, int) {
    const WgmmaOperand a = wgmma_columns(weights);
    const WgmmaOperand b = wgmma_columns(tile, first_column);
#pragma unroll
    for (int k = 0; k < kChunk; k += 16) wgmma_bf16<KP / 2, true>(out, a.at(k * kChunk * 2), b.at(k * 128));
  }

 private:
  /// out += dO or F times `b`, whose rows are `row_bytes` apart.
  template <int VT, int Blocks>
  __device__ static void multiply_rows(float (&out)[Blocks][4], const GradientRows<VT>& rows,
                                       const WgmmaOperand& b, uint32_t row_bytes, int warp) {
    if (warp < 4) {
      const WgmmaOperand a = wgmma_rows(rows.upstream);
#pragma unroll
      for (int k = 0; k < VT; k += 16)
        wgmma_bf16<Blocks * 8, false>(out, a.at(wgmma_row_step(k)), b.at(k * row_bytes));
    } else {
      const WgmmaOperand a = wgmma_columns(rows.solved);
#pragma unroll
      for (int k = 0; k < VT; k += 16)
        wgmma_bf16<Blocks * 8, true>(out, a.at(k * kChunk * 2), b.at(k * row_bytes));
    }
  }
};

}  // namespace osdn::kernels
