// What the launchers of the delta rule share: limits, and the way from sizes to instantiations.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "base/cuda.h"
#include "kernels/delta_rule.h"

namespace osdn::kernels {

/// Shared memory a block may have on the current device, read once.
inline int shared_memory_limit() {
  static const int limit = [] {
    int device = 0;
    int bytes = 0;
    OSDN_CUDA_CHECK(cudaGetDevice(&device));
    OSDN_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return bytes;
  }();
  return limit;
}

/// Multiprocessors of the current device, read once.
inline int multiprocessors() {
  static const int count = [] {
    int device = 0;
    int number = 0;
    OSDN_CUDA_CHECK(cudaGetDevice(&device));
    OSDN_CUDA_CHECK(cudaDeviceGetAttribute(&number, cudaDevAttrMultiProcessorCount, device));
    return number;
  }();
  return count;
}

/// Queues `kernel` with `bytes` of dynamic shared memory.
template <typename Args>
void launch_kernel(void (*kernel)(Args), dim3 grid, int threads, int bytes, const Args& args,
                   CUstream_st* stream) {
  OSDN_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<grid, threads, bytes, stream>>>(args);
  OSDN_CUDA_CHECK(cudaGetLastError());
}

/// Calls `call(std::integral_constant<int, KP>)`.
template <typename Call>
void by_key_size(const DeltaRuleShape& shape, const Call& call) {
  if (delta_rule_padded_key_size(shape.key_size) == 64)
    call(std::integral_constant<int, 64>{});
  else
    call(std::integral_constant<int, 128>{});
}

/// How the state decays: not; by a factor a token; or by a factor a chunk and key channel, the rows carrying
/// what lies within the chunk.
enum class Decay { kNone, kScalar, kChannel };

/// Calls `call(KP, warps, decay)` for a scan: eight warps share the tiles of 128 value channels; four where
/// there are fewer channels, or so few (sequence, value head) pairs that two blocks a pair fill the device
/// better.
template <typename Call>
void by_scan_shape(const DeltaRuleInputs& in, const float* chunk_decay, const Call& call) {
  const DeltaRuleShape& shape = in.shape;
  const int64_t wide_blocks = shape.num_sequences * shape.num_value_heads * ((shape.value_size + 127) / 128);
  const bool narrow = shape.value_size <= 64 || 2 * wide_blocks <= multiprocessors();
  const auto by_decay = [&](auto padded, auto warps) {
    if (in.log_decay != nullptr)
      call(padded, warps, std::integral_constant<Decay, Decay::kScalar>{});
    else if (chunk_decay != nullptr)
      call(padded, warps, std::integral_constant<Decay, Decay::kChannel>{});
    else
      call(padded, warps, std::integral_constant<Decay, Decay::kNone>{});
  };
  by_key_size(shape, [&](auto padded) {
    if (narrow)
      by_decay(padded, std::integral_constant<int, 4>{});
    else
      by_decay(padded, std::integral_constant<int, 8>{});
  });
}

}  // namespace osdn::kernels
