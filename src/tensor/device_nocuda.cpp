#include "base/error.h"
#include "tensor/detail/host_memory.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn {

int64_t num_gpus() { return 0; }

std::string no_gpu_reason() { return "this program was built without CUDA"; }

void use_gpu(int64_t) { throw InternalError("use_gpu: this program was built without CUDA"); }

std::string gpu_identity() { throw InternalError("gpu_identity: this program was built without CUDA"); }

std::string gpu_description() { return "none"; }

int64_t compute_capability() { return 0; }

CUstream_st* current_stream() { throw InternalError("current_stream: this program was built without CUDA"); }

void synchronize(at::Device) {}

uint64_t peak_memory_bytes(at::Device) { return detail::peak_resident_bytes(); }

void release_unused_memory(at::Device) {}

at::Tensor pinned_memory(at::IntArrayRef, at::ScalarType) {
  throw InternalError("pinned_memory: this program was built without CUDA");
}

std::string cuda_versions() { return "none"; }

void make_deterministic() {
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

}  // namespace osdn
