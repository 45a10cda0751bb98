// The causal depthwise convolution with SiLU (docs/ops/short_conv.md, eq. 1-6): one read and one write of the
// activations a pass, weight gradients in fp32 partial sums of a fixed order.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace osdn::kernels {

// N: packed tokens; S: sequences; D: channels, a multiple of kShortConvChannels; W: taps, 2..4. All pointers
// are device memory, aligned to kShortConvChannels numbers; arrays without strides contiguous.

inline constexpr int kShortConvChannels = 4;  // neighbouring channels of a thread
inline constexpr int kShortConvMinTaps = 2;
inline constexpr int kShortConvMaxTaps = 4;
inline constexpr int kShortConvMaxParts = 4;

/// Tokens that one thread of backward walks over: as many as leave an H200 enough threads.
constexpr int64_t short_conv_tile(int64_t num_tokens, int64_t num_channels) {
  constexpr int64_t kThreads = int64_t{132} * 2048;
  for (int64_t tile = 128; tile > 32; tile /= 2)
    if (num_tokens / tile * (num_channels / kShortConvChannels) >= kThreads) return tile;
  return 32;
}

/// Rows of partial weight gradients that backward writes.
constexpr int64_t short_conv_num_partials(int64_t num_tokens, int64_t num_channels) {
  const int64_t tile = short_conv_tile(num_tokens, num_channels);
  return (num_tokens + tile - 1) / tile;
}

/// What both passes read.
struct ShortConvInputs {
  const int64_t* offsets = nullptr;  // [S + 1] sequence bounds in tokens
  int64_t num_tokens = 0;            // N
  int64_t num_sequences = 0;         // S
  int64_t num_channels = 0;          // D
  int num_taps = 0;                  // W
  bool bf16 = false;                 // activations and states are bf16, else fp32
  bool weight_bf16 = false;          // the weight is bf16, else fp32
  bool silu = true;
  const void* x = nullptr;        // [N, D]
  int64_t x_stride = 0;           // from token to token, a multiple of kShortConvChannels
  const void* weight = nullptr;   // [D, W]
  const void* history = nullptr;  // [S, D, W]; null: zeros
};

struct ShortConvForwardArgs {
  ShortConvInputs in;
  void* y = nullptr;            // [N, D] written
  void* final_state = nullptr;  // [S, D, W] written
};

/// Columns `end` of the part before .. end - 1 of the upstream gradient.
struct ShortConvPart {
  const void* data = nullptr;  // [N, end - end of the part before]; null: zeros
  int64_t token_stride = 0;    // a multiple of kShortConvChannels
  int64_t end = 0;             // a multiple of kShortConvChannels
};

struct ShortConvBackwardArgs {
  ShortConvInputs in;
  ShortConvPart d_y[kShortConvMaxParts];  // the last one in use ends at D
  int num_parts = 0;
  const void* d_final = nullptr;  // [S, D, W]; null: zeros
  void* d_x = nullptr;            // [N, D] written
  int64_t d_x_stride = 0;         // a multiple of kShortConvChannels
  void* d_history = nullptr;      // [S, D, W] written where there is a history; null: not wanted
  float* partials = nullptr;      // [short_conv_num_partials(N, D), D, W] scratch
  float* d_weight = nullptr;      // [D, W]
  bool accumulate = false;        // add to d_weight instead of writing it
};

/// Queue the pass on `stream`. No allocation, no synchronisation, the same bits every time. Throw
/// CudaError for sizes out of range and when a launch fails, EnvironmentError in a build without CUDA.
void launch(const ShortConvForwardArgs& args, CUstream_st* stream);
void launch(const ShortConvBackwardArgs& args, CUstream_st* stream);

}  // namespace osdn::kernels
