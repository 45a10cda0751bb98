// Gradient of the embedding table (docs/ops/embedding.md): rows of the upstream gradient added up by token
// id, in token order.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

// N: tokens; D: width, a multiple of kEmbeddingChannels. All pointers are device memory, aligned to
// kEmbeddingChannels numbers.

inline constexpr int kEmbeddingChannels = 4;  // neighbouring channels of a thread
inline constexpr int kEmbeddingTile = 32;     // sorted tokens that a block adds up

constexpr int64_t embedding_num_tiles(int64_t num_tokens) {
  return (num_tokens + kEmbeddingTile - 1) / kEmbeddingTile;
}

struct EmbeddingBackwardArgs {
  const int64_t* ids = nullptr;     // [N] ascending
  const int64_t* tokens = nullptr;  // [N] the row of d_y of each of them, ascending among equal ids
  const void* d_y = nullptr;        // [N, D]
  int64_t d_y_stride = 0;           // from row to row, a multiple of kEmbeddingChannels
  bool bf16 = false;                // d_y is bf16, else fp32
  int64_t num_tokens = 0;           // N
  int64_t width = 0;                // D
  float* edges = nullptr;           // [embedding_num_tiles(N), 2, D] scratch
  float* d_table = nullptr;         // [V, D], V above every id; added to
};

/// Queues the pass on `stream`. No allocation, no synchronisation, the same bits every time. Throws CudaError
/// when a launch fails, EnvironmentError in a build without CUDA.
void launch(const EmbeddingBackwardArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
