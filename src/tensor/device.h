// What the program asks of the accelerator: whether there is one, its stream, its memory. Without CUDA in the
// build the same functions answer "none" (device_nocuda.cpp).
#pragma once

#include <cstdint>
#include <string>

#include "tensor/fwd.h"

struct CUstream_st;

namespace osdn {

/// Visible GPUs; 0 without a driver or in a CPU build.
int64_t num_gpus();

/// Why num_gpus() is 0, for messages: "built without CUDA" or the driver's own words.
std::string no_gpu_reason();

/// Makes the GPU with this index current for the calling thread. InternalError in a CPU build.
void use_gpu(int64_t index);

/// What tells the current GPU from every other one in the world, e.g. "GPU-5b1c...". InternalError in a CPU
/// build.
std::string gpu_identity();

/// Name, total memory and compute capability of the current GPU, e.g. "NVIDIA H200, 139.8 GiB, sm_90".
std::string gpu_description();

/// 10 * major + minor of the current GPU's compute capability, e.g. 90; 0 without one.
int64_t compute_capability();

/// LibTorch's current stream on the current device; for launching kernels. InternalError in a CPU build.
CUstream_st* current_stream();

/// Blocks until everything queued on the device is done; a no-op for a CPU device.
void synchronize(at::Device device);

/// Peak bytes that LibTorch's allocator held on a GPU, or the peak resident set of this process for a CPU.
uint64_t peak_memory_bytes(at::Device device);

/// Bytes of memory that this process may have: the machine's, or what a control group or limit leaves of it.
uint64_t host_memory_bytes();

/// Gives memory that LibTorch's allocator holds without a tensor in it back to the device; a no-op for a CPU.
void release_unused_memory(at::Device device);

/// Memory of the host, not set, that the device reads and writes while the host goes on: pinned.
at::Tensor pinned_memory(at::IntArrayRef sizes, at::ScalarType type);

/// Versions of CUDA's runtime and driver, cuDNN and NCCL as loaded, or "none".
std::string cuda_versions();

/// Makes cuBLAS and ATen deterministic and keeps float32 products in float32. Before the first use of the
/// device.
void make_deterministic();

}  // namespace osdn
