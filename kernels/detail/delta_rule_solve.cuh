// The solve of a chunk inside the scans (docs/ops/delta_rule.md eq. 11, 12), and the rounding of its sums to
// operands of the next products.
#pragma once

#include "kernels/detail/delta_rule_products.cuh"

namespace osdn::kernels {

constexpr int kHalfExponent = 14;       // of the largest number stored in fp16
constexpr int kSmallestExponent = -50;  // of numbers that are scaled up to it in full

/// x times a factor a column.
template <typename Factor>
__device__ void scale_columns(float (&x)[kChunk / 8][4], const Factor& factor) {
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    const float2 f = factor(n);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n][i] *= i & 1 ? f.y : f.x;
  }
}

/// n of the power 2^-n that brings this warp's largest value to 2^14 .. 2^15, where fp16 loses least below
/// it: gradients may be small, and across a chunk decays make them smaller still. `largest`: of this lane's
/// values.
__device__ inline int half_exponent(float largest) {
  const int exponent = static_cast<int>(__reduce_max_sync(0xffffffffu, __float_as_uint(largest)) >> 23) - 127;
  return max(exponent, kSmallestExponent) - kHalfExponent;
}

/// 2^exponent, or the nearest power that fp32 has.
__device__ inline float power_of_two(int exponent) {
  return __uint_as_float((min(max(exponent, -126), 127) + 127) << 23);
}

/// Accumulators of 16 rows and 64 columns, scaled by `factor(block)` (a pair of columns), as bf16 A
/// fragments.
template <typename Factor>
__device__ void round_scaled(uint32_t (&out)[kChunk / 16][4], const float (&x)[kChunk / 8][4],
                             const Factor& factor) {
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 f = factor(2 * k + half);
      out[k][2 * half] = pack_bf16(x[2 * k + half][0] * f.x, x[2 * k + half][1] * f.y);
      out[k][2 * half + 1] = pack_bf16(x[2 * k + half][2] * f.x, x[2 * k + half][3] * f.y);
    }
  }
}

/// x += rows times the transposed matrix, or times the matrix: a part of Y.
template <class Products, bool kTransposed, bool kHalf>
__device__ void add_times_solve(float (&x)[kChunk / 8][4], const uint32_t (&rows)[kChunk / 16][4],
                                const typename Products::Triangle& matrix, int lane) {
  if constexpr (kTransposed)
    Products::template add_times_upper<kHalf>(x, rows, matrix, lane);
  else
    Products::template add_times_lower<kHalf>(x, rows, matrix, lane);
}

/// Nothing to queue behind the products of a solve.
struct NoProducts {
  static constexpr int kGroups = 0;
  __device__ void operator()() const {}
};

/// Products to queue behind those of a solve: `Queue` ends one group of them.
template <typename Queue>
struct ProductsBehind {
  static constexpr int kGroups = 1;
  const Queue& queue;
  __device__ void operator()() const { queue(); }
};
template <typename Queue>
__device__ ProductsBehind<Queue> products_behind(const Queue& queue) {
  return {queue};
}

/// x - Y (beta x), transposed (eq. 11), or x - Y^T (beta x) (eq. 12). Both factors are in two parts of bf16,
/// so that numbers far smaller than the largest one keep their digits. `beta(block)`: of a pair of columns.
template <class Products, bool kTransposed, class Stage, typename Beta, class Behind>
__device__ void correct_wide(float (&x)[kChunk / 8][4], const Stage& stage, const Beta& beta_pair,
                             const Behind& behind, int lane) {
  uint32_t high[kChunk / 16][4];  // of -beta x
  uint32_t low[kChunk / 16][4];
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 beta = beta_pair(2 * k + half);
      const int n = 2 * k + half;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float2 scaled = make_float2(-beta.x * x[n][2 * row], -beta.y * x[n][2 * row + 1]);
        high[k][2 * half + row] = pack_bf16(scaled.x, scaled.y);
        const float2 stored = unpack_bf16(high[k][2 * half + row]);
        low[k][2 * half + row] = pack_bf16(scaled.x - stored.x, scaled.y - stored.y);
      }
    }
  }
  Products::begin(x);
  add_times_solve<Products, kTransposed, false>(x, low, stage.inverse, lane);
  add_times_solve<Products, kTransposed, false>(x, high, stage.remainder, lane);
  add_times_solve<Products, kTransposed, false>(x, high, stage.inverse, lane);
  Products::end();
  behind();
  Products::template wait<Behind::kGroups>(x);
}

/// The same, divided by the power of two that is returned, with factors in fp16.
template <class Products, bool kTransposed, class Stage, typename Beta, class Behind>
__device__ float correct(float (&x)[kChunk / 8][4], const Stage& stage, const Beta& beta_pair,
                         const Behind& behind, int lane) {
  if constexpr (Stage::kWide) {
    correct_wide<Products, kTransposed>(x, stage, beta_pair, behind, lane);
    return 1.0f;
  }
  uint32_t scaled[kChunk / 16][4];  // -beta x in fp16
  float largest = 0.0f;
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    const float2 beta = beta_pair(n);
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(x[n][i] * (i & 1 ? beta.y : beta.x)));
  }
  const int exponent = half_exponent(largest);
  const float scale = -power_of_two(-exponent);
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = 2 * k + half;
      const float2 beta = beta_pair(n);
      const float2 factor = make_float2(beta.x * scale, beta.y * scale);
      scaled[k][2 * half] = pack_fp16(x[n][0] * factor.x, x[n][1] * factor.y);
      scaled[k][2 * half + 1] = pack_fp16(x[n][2] * factor.x, x[n][3] * factor.y);
    }
  }
  // Y and beta x are stored divided by powers of two; the sum is taken in units of their product.
  const int unit = exponent + static_cast<int>(read_shared_bits(stage.inverse_scale) >> 23) - 127;
  const float inverse_unit = power_of_two(-unit);
  scale_columns(x, [&](int) { return make_float2(inverse_unit, inverse_unit); });
  Products::begin(x);
  add_times_solve<Products, kTransposed, true>(x, scaled, stage.inverse, lane);
  add_times_solve<Products, kTransposed, true>(x, scaled, stage.remainder, lane);
  Products::end();
  behind();
  Products::template wait<Behind::kGroups>(x);
  return power_of_two(unit);
}

}  // namespace osdn::kernels
