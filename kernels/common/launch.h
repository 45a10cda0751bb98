// The device at hand and launches on it. tests/emulation has the same functions for a CPU.
#pragma once

#include <cuda_runtime_api.h>

#include "base/cuda.h"

struct CUstream_st;

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

/// Whether the kernels of compute capability 9.0 serve the current device, read once.
inline bool has_warpgroups() {
  static const bool has = [] {
    int device = 0;
    int major = 0;
    int minor = 0;
    OSDN_CUDA_CHECK(cudaGetDevice(&device));
    OSDN_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    OSDN_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return major == 9 && minor == 0;
  }();
  return has;
}

template <typename Kernel>
void allow_shared_memory(Kernel* kernel, int bytes) {
  OSDN_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

/// Queues `kernel` with `bytes` of dynamic shared memory.
template <typename Args>
void launch_kernel(void (*kernel)(Args), dim3 grid, int threads, int bytes, const Args& args,
                   CUstream_st* stream) {
  allow_shared_memory(kernel, bytes);
  kernel<<<grid, threads, bytes, stream>>>(args);
  OSDN_CUDA_CHECK(cudaGetLastError());
}
/// The same of a kernel that may start before the one queued before it has ended (common/early_start.cuh).
/// On a device of compute capability 9.0.
template <typename Args>
void launch_early_kernel(void (*kernel)(Args), dim3 grid, int threads, int bytes, const Args& args,
                         CUstream_st* stream) {
  allow_shared_memory(kernel, bytes);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  void* arguments[] = {const_cast<Args*>(&args)};
  OSDN_CUDA_CHECK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments));
}
template <typename Args>
void launch_kernel(void (*kernel)(Args, int), dim3 grid, int threads, int bytes, const Args& args, int more,
                   CUstream_st* stream) {
  allow_shared_memory(kernel, bytes);
  kernel<<<grid, threads, bytes, stream>>>(args, more);
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace osdn::kernels
