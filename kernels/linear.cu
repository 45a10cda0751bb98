// y = x W^T (+ b) for any number of rows x, the bits of each as if it were alone (docs/ops/linear.md, "Rows
// that do not depend on each other"; the order of the sums: detail/linear_order.cuh). Any architecture from
// sm_80.
//   direct   few rows: a warp a chain, W and x from memory into the fragments of mma.sync, several slabs in
//            flight; the chains meet in shared memory. Memory-bound: 2 D_in D_out bytes.
//   grouped  more rows: the same with slabs through shared memory, which the warps of a chain share.
//   fp32     a warp a chain, a lane an output, FMA.
#include "kernels/linear.h"

#include <cuda_bf16.h>

#include "kernels/common/launch.h"
#include "kernels/common/mbarrier.cuh"
#include "kernels/detail/linear_order.cuh"

namespace osdn::kernels {
namespace linear_detail {
namespace {

constexpr int kWarp = 32;
constexpr int kPiece = 8;                    // bf16 numbers of 16 bytes
constexpr int kSlabPieces = kSlab / kPiece;  // the lanes that share a row
constexpr int kDirectThreads = kChains * kWarp;
constexpr int kFp32Threads = kFp32Chains * kWarp;

/// One 16-byte piece; weights pass once and need not stay in the cache that x lies in.
template <bool Once>
__device__ uint4 load_piece(const char* from, bool valid) {
  if (!valid) return uint4{0, 0, 0, 0};
  const auto* piece = reinterpret_cast<const uint4*>(from);
  return Once ? __ldcs(piece) : __ldg(piece);
}

/// Blocks * 16 outputs by Rows * 8 rows, Depth slabs in flight.
template <int Blocks, int Rows, int Depth, int Resident>
__global__ void __launch_bounds__(kDirectThreads, Resident)
    direct_kernel(const __grid_constant__ LinearArgs args) {
  using Sums = SumTile<Blocks * 16, Rows * 8>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int chain = static_cast<int>(threadIdx.x) / kWarp;
  const int t = lane % kSlabPieces;
  const int64_t first_output = static_cast<int64_t>(blockIdx.x) * (Blocks * 16);
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * (Rows * 8);
  const int pieces = static_cast<int>(args.width / kPiece);
  const int slabs = num_slabs(args.width);
  // Outputs and rows beyond the last are read as the last one, and not written. Bytes from the tile's first
  // row.
  const auto* w = static_cast<const char*>(args.weight) + first_output * args.width * 2;
  const auto* x = static_cast<const char*>(args.x) + first_row * args.x_stride * 2;
  const int last_output = static_cast<int>(min(args.num_outputs - first_output, int64_t{Blocks * 16})) - 1;
  const int last_row = static_cast<int>(min(args.num_rows - first_row, int64_t{Rows * 8})) - 1;
  uint32_t w_row[2 * Blocks];  // of rows g + 8 i
  uint32_t x_row[Rows];
#pragma unroll
  for (int i = 0; i < 2 * Blocks; ++i)
    w_row[i] = min(lane / kSlabPieces + 8 * i, last_output) * static_cast<uint32_t>(args.width) * 2 + t * 16;
#pragma unroll
  for (int i = 0; i < Rows; ++i)
    x_row[i] = min(lane / kSlabPieces + 8 * i, last_row) * static_cast<uint32_t>(args.x_stride) * 2 + t * 16;

  uint4 w_piece[Depth][2 * Blocks];
  uint4 x_piece[Depth][Rows];
  const auto load = [&](int d, int slab) {
    const bool valid = slab * kSlabPieces + t < pieces;
    const uint32_t offset = slab * (kSlab * 2);
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) w_piece[d][i] = load_piece<true>(w + (w_row[i] + offset), valid);
#pragma unroll
    for (int i = 0; i < Rows; ++i) x_piece[d][i] = load_piece<false>(x + (x_row[i] + offset), valid);
  };
  const uint32_t zero = unknown_zero(args);
  float acc[Blocks][Rows][4] = {};
  const int begin = first_slab(slabs, chain);
  const int end = first_slab(slabs, chain + 1);
#pragma unroll
  for (int d = 0; d < Depth; ++d)
    if (begin + d < end) load(d, begin + d);
  for (int at = begin; at < end; at += Depth) {
#pragma unroll
    for (int d = 0; d < Depth; ++d) {
      if (at + d >= end) break;
#pragma unroll
      for (int block = 0; block < Blocks; ++block) {
        const WeightFragment weights(w_piece[d][2 * block], w_piece[d][2 * block + 1], zero);
#pragma unroll
        for (int row = 0; row < Rows; ++row) weights.add_to(acc[block][row], x_piece[d][row]);
      }
      if (at + d + Depth < end) load(d, at + d + Depth);
    }
  }
#pragma unroll
  for (int block = 0; block < Blocks; ++block)
#pragma unroll
    for (int row = 0; row < Rows; ++row) Sums::put(chain, row * 8, block * 16, acc[block][row], lane);
  __syncthreads();
  Sums::template store<__nv_bfloat16, kChains, kDirectThreads>(args, first_output, first_row);
}

/// Blocks * 16 outputs by RowWarps * 32 rows. Each chain has warps of its own, RowWarps of them, and stages
/// of its own in shared memory, one slab of all outputs and rows each, 64 bytes a row.
template <int Blocks, int RowWarps, int Stages>
struct GroupedShape {
  static constexpr int kGroupThreads = RowWarps * kWarp;
  static constexpr int kThreads = kChains * kGroupThreads;
  static constexpr int kGroups = 4;  // of 8 rows, of a warp
  static constexpr int kOutputs = Blocks * 16;
  static constexpr int kRows = RowWarps * kGroups * 8;
  static constexpr int kRowBytes = kSlab * 2;
  static constexpr int kStageBytes = (kOutputs + kRows) * kRowBytes;
  // The sums of all chains meet where the stages lay, so many blocks at once.
  static constexpr int kRoundBlocks = Blocks > 4 ? Blocks / 2 : Blocks;
  using Sums = SumTile<kRoundBlocks * 16, kRows>;
  // A barrier for the warps of each chain behind them.
  static constexpr int kBarriers =
      kChains * (Stages * kStageBytes > Sums::kBytes ? Stages * kStageBytes : Sums::kBytes);
  static constexpr int kSharedBytes = kBarriers + kChains * kMbarrierBytes;
};

template <int Blocks, int RowWarps, int Stages, int Resident>
__global__ void __launch_bounds__(kChains* RowWarps* kWarp, Resident)
    grouped_kernel(const __grid_constant__ LinearArgs args) {
  using Shape = GroupedShape<Blocks, RowWarps, Stages>;
  constexpr int kGroups = Shape::kGroups;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int chain = thread / Shape::kGroupThreads;
  const int member = thread % Shape::kGroupThreads;  // of the chain's threads
  const int row_of_warp = member / kWarp * (kGroups * 8);
  const int64_t row_tiles = (args.num_rows + Shape::kRows - 1) / Shape::kRows;
  const int64_t first_output = blockIdx.x / row_tiles * Shape::kOutputs;
  const int64_t first_row = blockIdx.x % row_tiles * Shape::kRows;
  const int pieces = static_cast<int>(args.width / kPiece);
  const int slabs = num_slabs(args.width);
  const int begin = first_slab(slabs, chain);
  const int count = first_slab(slabs, chain + 1) - begin;
  const uint32_t stages = dynamic_shared() + chain * (Stages * Shape::kStageBytes);

  // Four neighbouring threads copy the 64 bytes of a row. Rows beyond the last: as in direct_kernel.
  constexpr int kRowsAtOnce = Shape::kGroupThreads / kSlabPieces;
  static_assert(Shape::kOutputs % kRowsAtOnce == 0 && Shape::kRows % kRowsAtOnce == 0);
  const int copied = member % kSlabPieces;
  const int copied_row = member / kSlabPieces;
  constexpr int kOutputCopies = Shape::kOutputs / kRowsAtOnce;  // of a thread
  constexpr int kRowCopies = Shape::kRows / kRowsAtOnce;
  const char* w = static_cast<const char*>(args.weight) + first_output * args.width * 2 + copied * 16;
  const char* x = static_cast<const char*>(args.x) + first_row * args.x_stride * 2 + copied * 16;
  const int last_output =
      static_cast<int>(min(args.num_outputs - first_output, int64_t{Shape::kOutputs})) - 1;
  const int last_row = static_cast<int>(min(args.num_rows - first_row, int64_t{Shape::kRows})) - 1;
  uint32_t w_row[kOutputCopies];  // bytes from the tile's first row
  uint32_t x_row[kRowCopies];
#pragma unroll
  for (int i = 0; i < kOutputCopies; ++i)
    w_row[i] = min(copied_row + i * kRowsAtOnce, last_output) * static_cast<uint32_t>(args.width) * 2;
#pragma unroll
  for (int i = 0; i < kRowCopies; ++i)
    x_row[i] = min(copied_row + i * kRowsAtOnce, last_row) * static_cast<uint32_t>(args.x_stride) * 2;
  const auto copy = [&](int step) {
    if (step < count) {
      const int slab = begin + step;
      const bool valid = slab * kSlabPieces + copied < pieces;
      const int64_t offset = valid ? int64_t{slab} * Shape::kRowBytes : 0;
      const char* w_slab = w + offset;
      const char* x_slab = x + offset;
      const uint32_t target =
          stages + step % Stages * Shape::kStageBytes + copied_row * Shape::kRowBytes + copied * 16;
#pragma unroll
      for (int i = 0; i < kOutputCopies; ++i)
        copy_async_16(target + i * kRowsAtOnce * Shape::kRowBytes, w_slab + w_row[i], valid);
#pragma unroll
      for (int i = 0; i < kRowCopies; ++i)
        copy_async_16(target + (Shape::kOutputs + i * kRowsAtOnce) * Shape::kRowBytes, x_slab + x_row[i],
                      valid);
    }
    copy_async_commit();
  };

  // All threads of the chain, each time as the `step`-th.
  const uint32_t barrier = dynamic_shared() + Shape::kBarriers + chain * kMbarrierBytes;
  const auto meet_chain = [&](int step) {
    if constexpr (RowWarps == 1) {
      __syncwarp();
    } else {
      mbarrier_arrive(barrier);
      mbarrier_wait(barrier, step & 1);
    }
  };
  if (RowWarps > 1 && member == 0) mbarrier_init(barrier, Shape::kGroupThreads);
  const uint32_t zero = unknown_zero(args);
  float acc[Blocks][kGroups][4] = {};
#pragma unroll
  for (int step = 0; step < Stages - 1; ++step) copy(step);
  if constexpr (RowWarps > 1) __syncthreads();  // the barriers are there
  for (int step = 0; step < count; ++step) {
    copy_async_wait<Stages - 2>();
    meet_chain(step);
    copy(step + Stages - 1);
    const uint32_t piece = stages + step % Stages * Shape::kStageBytes + lane * 16;  // of row g
    uint4 rows[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      rows[group] = read_shared_piece(piece + (Shape::kOutputs + row_of_warp + group * 8) * Shape::kRowBytes);
#pragma unroll
    for (int block = 0; block < Blocks; ++block) {
      const WeightFragment weights(read_shared_piece(piece + block * 16 * Shape::kRowBytes),
                                   read_shared_piece(piece + (block * 16 + 8) * Shape::kRowBytes), zero);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) weights.add_to(acc[block][group], rows[group]);
    }
  }
  copy_async_wait<0>();
#pragma unroll
  for (int round = 0; round < Blocks; round += Shape::kRoundBlocks) {
    __syncthreads();  // what lay here has been read
#pragma unroll
    for (int block = 0; block < Shape::kRoundBlocks; ++block)
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        Shape::Sums::put(chain, row_of_warp + group * 8, block * 16, acc[round + block][group], lane);
    __syncthreads();
    Shape::Sums::template store<__nv_bfloat16, kChains, Shape::kThreads>(args, first_output + round * 16,
                                                                         first_row);
  }
}

/// 32 outputs by Rows rows: a lane's output stays in registers, x is the same number for all lanes.
template <int Rows>
__global__ void __launch_bounds__(kFp32Threads) fp32_kernel(const __grid_constant__ LinearArgs args) {
  using Sums = SumTile<kWarp, Rows>;
  constexpr int kFour = 4;  // numbers of 16 bytes
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int chain = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row_tiles = (args.num_rows + Rows - 1) / Rows;
  const int64_t first_output = blockIdx.x / row_tiles * kWarp;
  const int64_t first_row = blockIdx.x % row_tiles * Rows;
  const int width = static_cast<int>(args.width);
  const float* w =
      static_cast<const float*>(args.weight) + min(first_output + lane, args.num_outputs - 1) * width;
  const float* x = static_cast<const float*>(args.x) + first_row * args.x_stride;
  const int last_row = static_cast<int>(min(static_cast<int64_t>(Rows), args.num_rows - first_row)) - 1;
  const int slabs = num_slabs(args.width);
  const int end = min(first_slab<kFp32Chains>(slabs, chain + 1) * kSlab, width);
  float sums[Rows] = {};
  for (int at = first_slab<kFp32Chains>(slabs, chain) * kSlab; at < end; at += kSlab) {
    float4 weights[kSlab / kFour];
#pragma unroll
    for (int i = 0; i < kSlab / kFour; ++i)
      weights[i] = at + i * kFour < end ? *reinterpret_cast<const float4*>(w + at + i * kFour) : float4{};
#pragma unroll
    for (int i = 0; i < kSlab / kFour; ++i) {
      if (at + i * kFour >= end) break;
#pragma unroll
      for (int row = 0; row < Rows; ++row) {
        const float4 values =
            *reinterpret_cast<const float4*>(x + min(row, last_row) * args.x_stride + at + i * kFour);
        sums[row] = __fmaf_rn(weights[i].x, values.x, sums[row]);
        sums[row] = __fmaf_rn(weights[i].y, values.y, sums[row]);
        sums[row] = __fmaf_rn(weights[i].z, values.z, sums[row]);
        sums[row] = __fmaf_rn(weights[i].w, values.w, sums[row]);
      }
    }
  }
#pragma unroll
  for (int row = 0; row < Rows; ++row) write_shared(Sums::at(chain, row, lane), sums[row]);
  __syncthreads();
  Sums::template store<float, kFp32Chains, kFp32Threads>(args, first_output, first_row);
}

int64_t tiles(int64_t count, int64_t size) { return (count + size - 1) / size; }

template <int Blocks, int Rows, int Depth, int Resident>
void launch_direct(const LinearArgs& args, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>(tiles(args.num_outputs, Blocks * 16)),
                  static_cast<unsigned>(tiles(args.num_rows, Rows * 8)));
  launch_kernel(direct_kernel<Blocks, Rows, Depth, Resident>, grid, kDirectThreads,
                kChains * SumTile<Blocks * 16, Rows * 8>::kBytes, args, stream);
}

template <int Blocks, int RowWarps, int Stages, int Resident>
void launch_grouped(const LinearArgs& args, CUstream_st* stream) {
  using Shape = GroupedShape<Blocks, RowWarps, Stages>;
  const int64_t blocks = tiles(args.num_outputs, Shape::kOutputs) * tiles(args.num_rows, Shape::kRows);
  launch_kernel(grouped_kernel<Blocks, RowWarps, Stages, Resident>, dim3(static_cast<unsigned>(blocks)),
                Shape::kThreads, Shape::kSharedBytes, args, stream);
}

template <int Rows>
void launch_fp32(const LinearArgs& args, CUstream_st* stream) {
  const int64_t blocks = tiles(args.num_outputs, kWarp) * tiles(args.num_rows, Rows);
  launch_kernel(fp32_kernel<Rows>, dim3(static_cast<unsigned>(blocks)), kFp32Threads,
                kFp32Chains * SumTile<kWarp, Rows>::kBytes, args, stream);
}

using Launch = void (*)(const LinearArgs&, CUstream_st*);

/// Few rows: deep queues where there are few blocks for a multiprocessor, many blocks else.
Launch direct_launch(int64_t num_rows, int64_t blocks_each) {
  if (num_rows <= 8)
    return blocks_each <= 1   ? launch_direct<1, 1, 16, 2>
           : blocks_each <= 3 ? launch_direct<1, 1, 12, 3>
                              : launch_direct<1, 1, 4, 6>;
  if (num_rows <= 16)
    return blocks_each <= 1   ? launch_direct<1, 2, 8, 2>
           : blocks_each <= 3 ? launch_direct<1, 2, 6, 3>
                              : launch_direct<1, 2, 3, 6>;
  return blocks_each <= 3 ? launch_direct<1, 4, 4, 3> : launch_direct<2, 4, 2, 2>;
}

/// Whichever is taken, the bits are the same: this is about time alone (measured on an H200).
Launch launch_for(const LinearArgs& args) {
  constexpr int64_t kManyRows = 512;
  const int64_t N = args.num_rows;
  if (!args.bf16) return N == 1 ? launch_fp32<1> : N <= 4 ? launch_fp32<4> : launch_fp32<16>;
  const int64_t blocks_each = tiles(tiles(args.num_outputs, 16), multiprocessors());
  if (N <= 16) return direct_launch(N, blocks_each);
  if (tiles(args.num_outputs, 32) * tiles(N, 32) <= multiprocessors()) return launch_grouped<2, 1, 6, 2>;
  if (N <= 32) return direct_launch(N, blocks_each);
  using Large = GroupedShape<8, 2, 4>;
  if (N <= kManyRows || Large::kSharedBytes > shared_memory_limit()) return launch_grouped<3, 2, 3, 2>;
  return launch_grouped<8, 2, 4, 1>;
}

}  // namespace
}  // namespace linear_detail

void launch(const LinearArgs& args, CUstream_st* stream) {
  if (args.num_outputs == 0 || args.num_rows == 0) return;
  linear_detail::launch_for(args)(args, stream);
}

}  // namespace osdn::kernels
