// What the passes of the delta rule share on the device: where a chunk lies.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/common/tile.cuh"
#include "kernels/delta_rule.h"

namespace osdn::kernels {

constexpr int kChunk = kDeltaRuleChunk;
constexpr int kSquareBytes = kChunk * kChunk * 2;  // of a 64x64 matrix of 16-bit numbers
constexpr int kVectorBytes = kChunk * 4;           // of a float a token

constexpr float kLog2E = 1.4426950408889634f;  // log2 e: decays are taken as powers of two

using SquareTile = BlockTile<kChunk>;

/// First element of one head at one token.
__device__ inline const __nv_bfloat16* rows_at(const DeltaRuleRows& rows, int64_t token, int head) {
  return rows.data + token * rows.token_stride + head * rows.head_stride;
}

/// A sequence's tokens and chunks.
struct SequencePlace {
  int64_t first_token;
  int64_t end_token;
  int64_t first_chunk;  // of all sequences
  int64_t chunks;

  __device__ SequencePlace(const DeltaRuleShape& shape, int64_t sequence)
      : first_token(shape.offsets[sequence]),
        end_token(shape.offsets[sequence + 1]),
        first_chunk(shape.chunk_offsets[sequence]),
        chunks(shape.chunk_offsets[sequence + 1] - first_chunk) {}
};

/// A chunk of one value head.
struct ChunkPlace {
  int64_t chunk;  // of all sequences
  int64_t token;  // its first
  int rows;       // its tokens, 1 .. 64
  bool exists;    // lists may be longer than there are chunks (kernels/delta_rule.h)
  int head;       // value head
  int key_head;

  __device__ ChunkPlace(const DeltaRuleShape& shape, const SequencePlace& sequence, int64_t index_in_sequence,
                        int value_head)
      : ChunkPlace(sequence, index_in_sequence, value_head,
                   value_head / (shape.num_value_heads / shape.num_key_heads)) {}
  __device__ ChunkPlace(const SequencePlace& sequence, int64_t index_in_sequence, int value_head,
                        int head_of_keys)
      : chunk(sequence.first_chunk + index_in_sequence),
        token(sequence.first_token + index_in_sequence * kChunk),
        rows(static_cast<int>(min(static_cast<int64_t>(kChunk), sequence.end_token - token))),
        exists(token < sequence.end_token),
        head(value_head),
        key_head(head_of_keys) {}

  /// Of a chunk that exists.
  __device__ ChunkPlace(int64_t number, int64_t first_token, int num_rows, int value_head, int its_key_head)
      : chunk(number),
        token(first_token),
        rows(num_rows),
        exists(true),
        head(value_head),
        key_head(its_key_head) {}

  /// Row of the [M, HV, ...] arrays.
  __device__ int64_t slot(const DeltaRuleShape& shape) const { return chunk * shape.num_value_heads + head; }
};

/// The place of a chunk given by its number in all sequences.
__device__ inline ChunkPlace place_of(const DeltaRuleShape& shape, int64_t chunk, int head) {
  const SequencePlace sequence(shape, shape.chunk_sequences[chunk]);
  return {shape, sequence, chunk - sequence.first_chunk, head};
}

/// Of an fp32 vector a token at `address`: those of the two columns 2t, 2t+1 of block `block`.
__device__ inline float2 column_pair(uint32_t address, int block, int lane) {
  return read_shared_2(address + (block * 8 + (lane & 3) * 2) * 4);
}

}  // namespace osdn::kernels
