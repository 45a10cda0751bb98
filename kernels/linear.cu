// y = x W^T (+ b) for any number of rows x, the bits of each as if it were alone (docs/ops/linear.md, "Rows
// that do not depend on each other"; the order of the sums: detail/linear_order.cuh). Any architecture from
// sm_80.
//   direct   few rows: a warp a chain, W and x from memory into the fragments of mma.sync, several slabs in
//            flight; the chains meet in shared memory. Memory-bound: 2 D_in D_out bytes.
//   staged   many rows: tiles of W and x through shared memory, chain after chain.
//   fp32     a warp a chain, a lane an output, FMA.
#include "kernels/linear.h"

#include <cuda_bf16.h>

#include "kernels/common/launch.h"
#include "kernels/detail/linear_order.cuh"

namespace osdn::kernels {
namespace linear_detail {
namespace {

constexpr int kWarp = 32;
constexpr int kPiece = 8;                    // bf16 numbers of 16 bytes
constexpr int kSlabPieces = kSlab / kPiece;  // the lanes that share a row
constexpr int kDirectThreads = kChains * kWarp;

/// One 16-byte piece; weights pass once and need not stay in the cache that x lies in.
template <bool Once>
__device__ uint4 load_piece(const char* from, bool valid) {
  if (!valid) return uint4{0, 0, 0, 0};
  const auto* piece = reinterpret_cast<const uint4*>(from);
  return Once ? __ldcs(piece) : __ldg(piece);
}

/// acc += the products of a slab: 16 rows of W, g and g + 8 of which are this lane's, with 8 rows of x.
__device__ void add_slab(float (&acc)[4], const uint4& low, const uint4& high, const uint4& x) {
  mma_bf16(acc, {low.x, high.x, low.y, high.y}, x.x, x.y);
  mma_bf16(acc, {low.z, high.z, low.w, high.w}, x.z, x.w);
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
      for (int block = 0; block < Blocks; ++block)
#pragma unroll
        for (int row = 0; row < Rows; ++row)
          add_slab(acc[block][row], w_piece[d][2 * block], w_piece[d][2 * block + 1], x_piece[d][row]);
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

/// A stage of shared memory is two slabs of Outputs rows of W and Rows rows of x, 64 bytes a row and slab; in
/// the second slab neighbouring rows are exchanged, so that eight pieces of one row fall into all banks.
template <int Outputs, int Rows>
struct Stage {
  static constexpr int kRowBytes = kSlab * 2;
  static constexpr int kSlabBytes = (Outputs + Rows) * kRowBytes;
  static constexpr int kBytes = 2 * kSlabBytes;
  static constexpr int kSlabs = 2;
  uint32_t base;

  __device__ uint32_t piece(int slab, int row, int t) const {
    return base + slab * kSlabBytes + (row ^ slab) * kRowBytes + t * 16;
  }
};

/// OutputWarps x RowWarps warps, each Blocks * 16 outputs by Groups * 8 rows.
template <int OutputWarps, int RowWarps, int Blocks, int Groups, int Stages>
struct StagedShape {
  static constexpr int kThreads = OutputWarps * RowWarps * kWarp;
  static constexpr int kOutputs = OutputWarps * Blocks * 16;
  static constexpr int kRows = RowWarps * Groups * 8;
  using Shared = Stage<kOutputs, kRows>;
  using Sums = SumTile<kOutputs, kRows>;
  static constexpr int kSharedBytes =
      Stages * Shared::kBytes > Sums::kBytes ? Stages* Shared::kBytes : Sums::kBytes;
  static_assert(kSharedBytes <= 99 * 1024, "portable to compute capability 8.6");
};

template <int OutputWarps, int RowWarps, int Blocks, int Groups, int Stages, int Resident>
__global__ void __launch_bounds__(OutputWarps* RowWarps* kWarp, Resident)
    staged_kernel(const __grid_constant__ LinearArgs args) {
  using Shape = StagedShape<OutputWarps, RowWarps, Blocks, Groups, Stages>;
  using Shared = typename Shape::Shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int g = lane / kSlabPieces;
  const int t = lane % kSlabPieces;
  const int output_of_warp = thread / kWarp / RowWarps * (Blocks * 16);
  const int row_of_warp = thread / kWarp % RowWarps * (Groups * 8);
  const int64_t row_tiles = (args.num_rows + Shape::kRows - 1) / Shape::kRows;
  const int64_t first_output = blockIdx.x / row_tiles * Shape::kOutputs;
  const int64_t first_row = blockIdx.x % row_tiles * Shape::kRows;
  const int pieces = static_cast<int>(args.width / kPiece);
  const int slabs = num_slabs(args.width);
  const int stages = (slabs + Shared::kSlabs - 1) / Shared::kSlabs;

  // Eight neighbouring threads copy the 128 bytes of a row. Rows beyond the last: as in direct_kernel.
  constexpr int kPiecesOfRow = Shared::kSlabs * kSlabPieces;
  constexpr int kRowsAtOnce = Shape::kThreads / kPiecesOfRow;
  static_assert(Shape::kOutputs % kRowsAtOnce == 0 && Shape::kRows % kRowsAtOnce == 0);
  constexpr int kCopies = (Shape::kOutputs + Shape::kRows) / kRowsAtOnce;  // of a thread
  const int copied = thread % kPiecesOfRow;                                // piece of a row
  const uint4* source[kCopies];
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int row = thread / kPiecesOfRow + i * kRowsAtOnce;
    source[i] =
        i * kRowsAtOnce < Shape::kOutputs
            ? static_cast<const uint4*>(args.weight) + min(first_output + row, args.num_outputs - 1) * pieces
            : static_cast<const uint4*>(args.x) +
                  min(first_row + row - Shape::kOutputs, args.num_rows - 1) * (args.x_stride / kPiece);
    source[i] += copied;
  }
  const auto copy = [&](int stage) {
    if (stage < stages) {
      const Shared shared{dynamic_shared() + stage % Stages * Shared::kBytes};
      const bool valid = stage * kPiecesOfRow + copied < pieces;
#pragma unroll
      for (int i = 0; i < kCopies; ++i)
        copy_async_16(
            shared.piece(copied / kSlabPieces, thread / kPiecesOfRow + i * kRowsAtOnce, copied % kSlabPieces),
            valid ? source[i] + stage * kPiecesOfRow : static_cast<const uint4*>(args.weight), valid);
    }
    copy_async_commit();
  };

  float acc[Blocks][Groups][4] = {};    // of the chain at hand
  float total[Blocks][Groups][4] = {};  // of the chains before
  int chain = 0;
  int chain_end = first_slab(slabs, 1);
#pragma unroll
  for (int stage = 0; stage < Stages - 1; ++stage) copy(stage);
  for (int stage = 0; stage < stages; ++stage) {
    copy_async_wait<Stages - 2>();
    __syncthreads();
    copy(stage + Stages - 1);
    const Shared shared{dynamic_shared() + stage % Stages * Shared::kBytes};
#pragma unroll
    for (int half = 0; half < Shared::kSlabs; ++half) {
      const int slab = stage * Shared::kSlabs + half;
      if (slab >= slabs) break;
      while (slab == chain_end) {
#pragma unroll
        for (int block = 0; block < Blocks; ++block)
#pragma unroll
          for (int group = 0; group < Groups; ++group)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              total[block][group][i] += acc[block][group][i];
              acc[block][group][i] = 0.0f;
            }
        ++chain;
        chain_end = first_slab(slabs, chain + 1);
      }
      uint4 x[Groups];
#pragma unroll
      for (int group = 0; group < Groups; ++group)
        x[group] = read_shared_piece(shared.piece(half, Shape::kOutputs + row_of_warp + group * 8 + g, t));
#pragma unroll
      for (int block = 0; block < Blocks; ++block) {
        const uint4 low = read_shared_piece(shared.piece(half, output_of_warp + block * 16 + g, t));
        const uint4 high = read_shared_piece(shared.piece(half, output_of_warp + block * 16 + 8 + g, t));
#pragma unroll
        for (int group = 0; group < Groups; ++group) add_slab(acc[block][group], low, high, x[group]);
      }
    }
  }
  copy_async_wait<0>();
  __syncthreads();  // the sums lie where the stages lay
#pragma unroll
  for (int block = 0; block < Blocks; ++block)
#pragma unroll
    for (int group = 0; group < Groups; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) total[block][group][i] += acc[block][group][i];
      Shape::Sums::put(0, row_of_warp + group * 8, output_of_warp + block * 16, total[block][group], lane);
    }
  __syncthreads();
  Shape::Sums::template store<__nv_bfloat16, 1, Shape::kThreads>(args, first_output, first_row);
}

/// 32 outputs by Rows rows: a lane's output stays in registers, x is the same number for all lanes.
template <int Rows>
__global__ void __launch_bounds__(kDirectThreads) fp32_kernel(const __grid_constant__ LinearArgs args) {
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
  const int end = min(first_slab(slabs, chain + 1) * kSlab, width);
  float sums[Rows] = {};
  for (int at = first_slab(slabs, chain) * kSlab; at < end; at += kSlab) {
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
  Sums::template store<float, kChains, kDirectThreads>(args, first_output, first_row);
}

int64_t tiles(int64_t count, int64_t size) { return (count + size - 1) / size; }

template <int Blocks, int Rows, int Depth, int Resident>
void launch_direct(const LinearArgs& args, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>(tiles(args.num_outputs, Blocks * 16)),
                  static_cast<unsigned>(tiles(args.num_rows, Rows * 8)));
  launch_kernel(direct_kernel<Blocks, Rows, Depth, Resident>, grid, kDirectThreads,
                kChains * SumTile<Blocks * 16, Rows * 8>::kBytes, args, stream);
}

template <int OutputWarps, int RowWarps, int Blocks, int Groups, int Stages, int Resident>
void launch_staged(const LinearArgs& args, CUstream_st* stream) {
  using Shape = StagedShape<OutputWarps, RowWarps, Blocks, Groups, Stages>;
  const int64_t blocks = tiles(args.num_outputs, Shape::kOutputs) * tiles(args.num_rows, Shape::kRows);
  launch_kernel(staged_kernel<OutputWarps, RowWarps, Blocks, Groups, Stages, Resident>,
                dim3(static_cast<unsigned>(blocks)), Shape::kThreads, Shape::kSharedBytes, args, stream);
}

template <int Rows>
void launch_fp32(const LinearArgs& args, CUstream_st* stream) {
  const int64_t blocks = tiles(args.num_outputs, kWarp) * tiles(args.num_rows, Rows);
  launch_kernel(fp32_kernel<Rows>, dim3(static_cast<unsigned>(blocks)), kDirectThreads,
                kChains * SumTile<kWarp, Rows>::kBytes, args, stream);
}

}  // namespace
}  // namespace linear_detail

LinearTile linear_tile(const LinearArgs& args) {
  const int64_t N = args.num_rows;
  if (!args.bf16) return {.outputs = 32, .rows = N == 1 ? 1 : N <= 4 ? 4 : 16};
  if (N <= 8) return {.outputs = 16, .rows = 8};
  if (N <= 16) return {.outputs = 16, .rows = 16};
  if (N <= 32) return {.outputs = 32, .rows = 32};
  if (N <= 256) return {.outputs = 64, .rows = 64, .staged = true};
  return {.outputs = 128, .rows = 128, .staged = true};
}

void launch(const LinearArgs& args, CUstream_st* stream) {
  using namespace linear_detail;
  if (args.num_outputs == 0 || args.num_rows == 0) return;
  const LinearTile tile = linear_tile(args);
  const auto run = !args.bf16        ? (tile.rows == 1   ? launch_fp32<1>
                                        : tile.rows == 4 ? launch_fp32<4>
                                                         : launch_fp32<16>)
                   : tile.rows == 8  ? launch_direct<1, 1, 8, 2>
                   : tile.rows == 16 ? launch_direct<1, 2, 4, 2>
                   : tile.rows == 32 ? launch_direct<2, 4, 2, 2>
                   : tile.rows == 64 ? launch_staged<2, 2, 2, 4, 4, 3>
                                     : launch_staged<2, 4, 4, 4, 3, 1>;
  run(args, stream);
}

}  // namespace osdn::kernels
