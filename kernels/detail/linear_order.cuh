// In which order the kernels of kernels/linear.h add (docs/ops/linear.md, "Rows that do not depend on each
// other"): a function of D_in alone. A row is cut into slabs of 32 numbers and the slabs into 4 chains (fp32:
// 8) of neighbours. A chain is one running sum; the chains' sums are added in their order, then the bias.
//
// bf16: a slab is two products of depth 16. Lane t of the four that share a row takes the 8 numbers from 8 t
// on, the first half of them for the first product: whichever kernel, the tensor cores meet the same numbers
// in the same places.
#pragma once

#include "kernels/common/mma.cuh"
#include "kernels/linear.h"

namespace osdn::kernels::linear_detail {

constexpr int kSlab = 32;  // numbers of a row
constexpr int kChains = 4;
constexpr int kFp32Chains = 8;

__device__ inline int num_slabs(int64_t width) { return static_cast<int>((width + kSlab - 1) / kSlab); }

/// First slab of `chain` of Chains; that of the chain behind the last is the number of slabs.
template <int Chains = kChains>
__device__ int first_slab(int slabs, int chain) {
  return static_cast<int>(static_cast<int64_t>(slabs) * chain / Chains);
}

/// 16 rows of W for the two products of a slab, from what a lane holds of rows g and g + 8. `zero` is 0,
/// which the compiler is not to know: it would copy the registers anew for every product.
struct WeightFragment {
  uint32_t first[4];
  uint32_t second[4];

  __device__ WeightFragment(const uint4& low, const uint4& high, uint32_t zero)
      : first{low.x ^ zero, high.x ^ zero, low.y ^ zero, high.y ^ zero},
        second{low.z ^ zero, high.z ^ zero, low.w ^ zero, high.w ^ zero} {}

  /// acc += the products with 8 rows of x.
  __device__ void add_to(float (&acc)[4], const uint4& x) const {
    mma_bf16(acc, first, x.x, x.y);
    mma_bf16(acc, second, x.z, x.w);
  }
};

__device__ inline uint32_t unknown_zero(const LinearArgs& args) {
  return static_cast<uint32_t>(static_cast<uint64_t>(args.num_rows) >> 48);
}

__device__ inline float bias_of(const LinearArgs& args, int64_t output) {
  if (args.bias == nullptr) return 0.0f;
  return args.bias_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(args.bias)[output])
                        : static_cast<const float*>(args.bias)[output];
}

/// Sums of a tile of y in shared memory: [parts, Rows, kPitch] fp32.
template <int Outputs, int Rows>
struct SumTile {
  static constexpr int kPitch = Outputs + 4;  // rows two apart fall into different banks
  static constexpr int kBytes = Rows * kPitch * 4;

  __device__ static uint32_t at(int part, int row, int output) {
    return dynamic_shared() + part * kBytes + (row * kPitch + output) * 4;
  }

  /// Writes what accumulators of a 16 x 8 product hold (common/mma.cuh).
  __device__ static void put(int part, int row, int output, const float (&acc)[4], int lane) {
    const int m = output + lane / 4;
    const int n = row + lane % 4 * 2;
    write_shared(at(part, n, m), acc[0]);
    write_shared(at(part, n + 1, m), acc[1]);
    write_shared(at(part, n, m + 8), acc[2]);
    write_shared(at(part, n + 1, m + 8), acc[3]);
  }

  /// y of the tile whose first output and row are given: the parts in their order.
  template <typename T, int Parts, int Threads>
  __device__ static void store(const LinearArgs& args, int64_t first_output, int64_t first_row) {
    const int rows = static_cast<int>(min(static_cast<int64_t>(Rows), args.num_rows - first_row));
    for (int i = static_cast<int>(threadIdx.x); i < rows * Outputs; i += Threads) {
      const int row = i / Outputs;
      const int64_t output = first_output + i % Outputs;
      if (output >= args.num_outputs) continue;
      float sum = 0.0f;
#pragma unroll
      for (int part = 0; part < Parts; ++part) sum += read_shared(at(part, row, i % Outputs));
      static_cast<T*>(args.y)[(first_row + row) * args.num_outputs + output] =
          static_cast<T>(sum + bias_of(args, output));
    }
  }
};

}  // namespace osdn::kernels::linear_detail
