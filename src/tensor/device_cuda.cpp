#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <cstdlib>

#include "base/error.h"
#include "tensor/detail/host_memory.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn {

int64_t num_gpus() { return c10::cuda::device_count(); }

std::string no_gpu_reason() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  return status == cudaSuccess ? "the driver lists no device" : cudaGetErrorString(status);
}

void use_gpu(int64_t index) { c10::cuda::set_device(static_cast<c10::DeviceIndex>(index)); }

std::string gpu_identity() {
  const cudaDeviceProp* device = at::cuda::getCurrentDeviceProperties();
  std::string text = "GPU-";
  for (const char byte : device->uuid.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string gpu_description() {
  const cudaDeviceProp* device = at::cuda::getCurrentDeviceProperties();
  return fmt::format("{}, {:.1f} GiB, sm_{}{}", device->name,
                     static_cast<double>(device->totalGlobalMem) / (1 << 30), device->major, device->minor);
}

int64_t compute_capability() {
  if (num_gpus() == 0) return 0;
  const cudaDeviceProp* device = at::cuda::getCurrentDeviceProperties();
  return 10 * device->major + device->minor;
}

CUstream_st* current_stream() { return at::cuda::getCurrentCUDAStream().stream(); }

void synchronize(at::Device device) {
  if (device.is_cuda()) c10::cuda::device_synchronize();
}

uint64_t peak_memory_bytes(at::Device device) {
  if (!device.is_cuda()) return detail::peak_resident_bytes();
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  return static_cast<uint64_t>(stats.reserved_bytes[0].peak);
}

void release_unused_memory(at::Device device) {
  if (device.is_cuda()) c10::cuda::CUDACachingAllocator::emptyCache();
}

at::Tensor pinned_memory(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions().dtype(type).pinned_memory(true));
}

std::string cuda_versions() {
  int runtime = 0;
  int driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  cudaGetLastError();
  const auto text = [](int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); };
  return fmt::format("runtime {}, driver {}", text(runtime), driver > 0 ? text(driver) : "none");
}

void make_deterministic() {
  // cuBLAS keeps its results reproducible across streams only with a fixed workspace.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  at::globalContext().setDeterministicAlgorithms(true, false);
  // Filling fresh memory is a debugging aid that costs a pass over every output.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().setBenchmarkCuDNN(false);
}

}  // namespace osdn
