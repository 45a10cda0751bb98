// Matrices of 16-bit numbers in shared memory and how fragments are read from them (common/mma.cuh).
//
// RowTile: 64 rows of Columns numbers as they lie in global memory, in panels of 64 columns. A row of a panel
// is 128 bytes, its 16-byte pieces exchanged so that the eight rows of a block fall into different banks; of
// a tile aligned to 1024 bytes this is the tensor cores' 128-byte swizzle. BlockTile: 8x8 blocks one after
// the other, 128 bytes each; a register a lane of a block is 128 contiguous bytes in memory, so accumulators
// go out and come back without a transposition. Workspaces use it.
#pragma once

#include "kernels/common/fragments.cuh"

namespace osdn::kernels {

template <int Columns>
struct RowTile {
  static constexpr int kColumns = Columns;
  static constexpr int kPanelBytes = 64 * 128;
  uint32_t base;  // shared address

  /// Of the 16-byte piece with columns column .. column+7 (a multiple of 8).
  __device__ uint32_t piece(int row, int column) const {
    return base + (column >> 6) * kPanelBytes + row * 128 + ((((column >> 3) ^ row) & 7) << 4);
  }
};

template <int Columns>
struct BlockTile {
  static constexpr int kColumns = Columns;
  uint32_t base;

  __device__ uint32_t piece(int row, int column) const {
    return base + ((row >> 3) * (Columns / 8) + (column >> 3)) * 128 + (row & 7) * 16;
  }
};

/// The lower 16x16 blocks of a 64x64 matrix, row of blocks after row, each as four 8x8 blocks.
struct TriangleTile {
  static constexpr int kBlocks = 10;
  static constexpr int kBytes = kBlocks * 512;
  uint32_t base;

  /// Of 16x16 block (row, column), column <= row.
  static constexpr int block(int row, int column) { return row * (row + 1) / 2 + column; }

  __device__ uint32_t piece(int row, int column) const {
    return base + block(row >> 4, column >> 4) * 512 + ((row >> 3) & 1) * 256 + ((column >> 3) & 1) * 128 +
           (row & 7) * 16;
  }
};

/// Where the `piece`-th 16 bytes of a TriangleTile lie in a square tile.
template <class Tile>
__device__ uint32_t triangle_piece_in(const Tile& square, int piece) {
  const int block = piece / 32;
  const int block_row = (block >= 1) + (block >= 3) + (block >= 6);
  const int block_column = block - TriangleTile::block(block_row, 0);
  return square.piece(block_row * 16 + ((piece >> 4) & 1) * 8 + (piece & 7),
                      block_column * 16 + ((piece >> 3) & 1) * 8);
}

/// B fragments of columns n0 .. n0+15, k0 .. k0+15, of a tile whose rows are n: {n0: k lo, k hi; n0+8: k lo,
/// k hi}.
template <class Tile>
__device__ void load_b_of_rows(uint32_t (&out)[4], const Tile& tile, int n0, int k0, int lane) {
  load_blocks(out, tile.piece(n0 + (lane >> 4) * 8 + (lane & 7), k0 + ((lane >> 3) & 1) * 8));
}

/// The same of a tile whose rows are k.
template <class Tile>
__device__ void load_b_of_columns(uint32_t (&out)[4], const Tile& tile, int n0, int k0, int lane) {
  load_blocks_transposed(out, tile.piece(k0 + ((lane >> 3) & 1) * 8 + (lane & 7), n0 + (lane >> 4) * 8));
}

/// A fragment of rows m0 .. m0+15, k0 .. k0+15, of a tile whose rows are m.
template <class Tile>
__device__ void load_a_of_rows(uint32_t (&out)[4], const Tile& tile, int m0, int k0, int lane) {
  load_blocks(out, tile.piece(m0 + ((lane >> 3) & 1) * 8 + (lane & 7), k0 + (lane >> 4) * 8));
}

/// The same of a tile whose rows are k.
template <class Tile>
__device__ void load_a_of_columns(uint32_t (&out)[4], const Tile& tile, int m0, int k0, int lane) {
  load_blocks_transposed(out, tile.piece(k0 + (lane >> 4) * 8 + (lane & 7), m0 + ((lane >> 3) & 1) * 8));
}

/// Queues the copy of 64 rows from global memory by a block of `Threads`, zeros from row `rows` and column
/// `columns` (a multiple of 8) on. `source` and `row_stride` (in numbers) are multiples of 16 bytes.
template <int Threads, int Columns>
__device__ void copy_rows_async(const RowTile<Columns>& tile, const __nv_bfloat16* source, int64_t row_stride,
                                int rows, int columns) {
  constexpr int kPieces = Columns / 8;  // of a row
  constexpr int kStep = Threads / kPieces;
  if constexpr (kStep < 8) {
    constexpr int kHalf = Columns / 2;
    copy_rows_async<Threads>(RowTile<kHalf>{tile.base}, source, row_stride, rows, columns);
    copy_rows_async<Threads>(RowTile<kHalf>{tile.piece(0, kHalf)}, source + kHalf, row_stride, rows,
                             columns - kHalf);
  } else {
    static_assert(kStep % 8 == 0);  // so that a thread's pieces lie at equal distances
    const int thread = copying_thread();
    const int column = thread % kPieces * 8;
    const int first = thread / kPieces;
    const uint32_t target = tile.piece(first, column);
    const int limit = column < columns ? rows : 0;
    const __nv_bfloat16* from = source + first * row_stride + column;
#pragma unroll
    for (int row = 0; row < 64; row += kStep) {
      const bool valid = first + row < limit;
      copy_async_16(target + row * 128, valid ? from : source, valid);
      from += kStep * row_stride;
    }
  }
}

/// The same of 64 rows that are all there, with all columns.
template <int Threads, int Columns>
__device__ void copy_all_rows_async(const RowTile<Columns>& tile, const __nv_bfloat16* source,
                                    int64_t row_stride) {
  constexpr int kPieces = Columns / 8;
  constexpr int kStep = Threads / kPieces;
  static_assert(kStep % 8 == 0);
  const unsigned thread = threadIdx.x;
  const unsigned column = thread % kPieces * 8;
  const unsigned first = thread / kPieces;
  const uint32_t target = tile.piece(static_cast<int>(first), static_cast<int>(column));
  const __nv_bfloat16* from = source + first * row_stride + column;
#pragma unroll
  for (int row = 0; row < 64; row += kStep) {
    copy_async_16(target + row * 128, from, true);
    from += kStep * row_stride;
  }
}

/// Queues the copy of `Bytes` (a multiple of 16) as they lie, by a block of `Threads`.
template <int Threads, int Bytes>
__device__ void copy_flat_async(uint32_t target, const void* source) {
  const int thread = copying_thread();
  const char* from = static_cast<const char*>(source) + thread * 16;
  target += thread * 16;
#pragma unroll
  for (int offset = 0; offset < Bytes; offset += Threads * 16)
    if (offset + Threads * 16 <= Bytes || offset + thread * 16 < Bytes)
      copy_async_16(target + offset, from + offset, true);
}

/// Queues the copy of numbers source[i * stride] for i < count, zeros up to 64, by the 64 threads from
/// `first` on.
__device__ inline void copy_vector_async(uint32_t target, const float* source, int64_t stride, int count,
                                         int first) {
  const int i = copying_thread() - first;
  if (i < 0 || i >= 64) return;
  copy_async_4(target + i * 4, i < count ? source + i * stride : source, i < count);
}

}  // namespace osdn::kernels
