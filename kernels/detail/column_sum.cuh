// The second pass of sums over rows: partial sums [R, C] in fp32 to their sum over R, in a fixed order.
#pragma once

#include <cstdint>

#include "kernels/common/launch.h"

namespace osdn::kernels {
namespace column_sum_detail {

constexpr int kColumns = 32;  // a block's
constexpr int kWarps = 32;    // each takes every 32nd row

struct Args {
  const float* partial;  // [R, C]
  int64_t num_rows;      // R
  int64_t num_columns;   // C
  float* sum;            // [C]
};

/// Grid: ceil(C / 32). Warp w adds rows w, w + 32, ...; the first warp adds their sums in order.
template <bool Accumulate>
__global__ void __launch_bounds__(kColumns* kWarps) column_sum_kernel(const __grid_constant__ Args args) {
  __shared__ float sums[kWarps][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kColumns;
  const int warp = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + lane;
  float total = 0;
  if (column < args.num_columns) {
#pragma unroll 4
    for (int64_t row = warp; row < args.num_rows; row += kWarps)
      total += args.partial[row * args.num_columns + column];
  }
  sums[warp][lane] = total;
  __syncthreads();
  if (warp > 0 || column >= args.num_columns) return;
  for (int other = 1; other < kWarps; ++other) total += sums[other][lane];
  args.sum[column] = Accumulate ? args.sum[column] + total : total;
}

}  // namespace column_sum_detail

/// Queues sum [C] (+)= the sum over the rows of partial [R, C].
inline void launch_column_sum(const float* partial, int64_t num_rows, int64_t num_columns, float* sum,
                              bool accumulate, CUstream_st* stream) {
  namespace detail = column_sum_detail;
  if (num_columns == 0) return;
  const auto blocks = static_cast<unsigned>((num_columns + detail::kColumns - 1) / detail::kColumns);
  const auto kernel = accumulate ? detail::column_sum_kernel<true> : detail::column_sum_kernel<false>;
  launch_kernel(kernel, dim3(blocks), detail::kColumns * detail::kWarps, 0,
                detail::Args{partial, num_rows, num_columns, sum}, stream);
}

}  // namespace osdn::kernels
