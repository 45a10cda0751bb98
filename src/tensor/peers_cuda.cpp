#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "base/cuda.h"
#include "base/error.h"
#include "tensor/device.h"
#include "tensor/peers.h"
#include "tensor/torch.h"

namespace osdn {
namespace peers_detail {

/// What a process is told of another one's memory.
struct Exported {
  cudaIpcMemHandle_t allocation;
  uint64_t offset;  // of the tensor's first byte
};

/// A function of the driver; nullptr where it has none. The program does not link the driver's library, for
/// it runs without a GPU too.
template <typename Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned int kSince = 12000;  // the version whose signature is meant
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &function, kSince, cudaEnableDefault, &found);
  if (status != cudaSuccess) cudaGetLastError();
  return status == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(function)
                                                                       : nullptr;
}

using BatchMemOp = CUresult (*)(CUstream, unsigned int, CUstreamBatchMemOpParams*, unsigned int);
BatchMemOp batch_mem_op() {
  static const auto function = driver_function<BatchMemOp>("cuStreamBatchMemOp");
  return function;
}

using GetAddressRange = CUresult (*)(CUdeviceptr*, size_t*, CUdeviceptr);
GetAddressRange get_address_range() {
  static const auto function = driver_function<GetAddressRange>("cuMemGetAddressRange");
  return function;
}

void queue_operations(std::vector<CUstreamBatchMemOpParams>& operations) {
  const CUresult status =
      batch_mem_op()(current_stream(), static_cast<unsigned int>(operations.size()), operations.data(), 0);
  if (status != CUDA_SUCCESS)
    throw CudaError(static_cast<int>(status),
                    fmt::format("cuStreamBatchMemOp failed: error {}", static_cast<int>(status)));
}

CUstreamBatchMemOpParams write_operation(uint64_t address, uint32_t value) {
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = address;
  operation.writeValue.value = value;
  operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  return operation;
}

void close_memory(void* allocation) {
  if (cudaIpcCloseMemHandle(allocation) != cudaSuccess) cudaGetLastError();
}

void unregister(uint32_t* memory) {
  if (cudaHostUnregister(memory) != cudaSuccess) cudaGetLastError();
}

}  // namespace peers_detail

std::string no_peers_reason() {
  if (num_gpus() == 0) return no_gpu_reason();
  if (!peers_detail::batch_mem_op() || !peers_detail::get_address_range())
    return "the driver cannot make streams wait for memory";
  return {};
}

std::string gpu_address() {
  char address[32] = {};
  OSDN_CUDA_CHECK(cudaDeviceGetPCIBusId(address, sizeof(address), c10::cuda::current_device()));
  return address;
}

bool can_reach_gpu(const std::string& address) {
  int other = -1;
  int reaches = 0;
  const int own = c10::cuda::current_device();
  cudaError_t status = cudaDeviceGetByPCIBusId(&other, address.c_str());
  if (status == cudaSuccess && other == own) return true;
  if (status == cudaSuccess) status = cudaDeviceCanAccessPeer(&reaches, own, other);
  if (status != cudaSuccess) cudaGetLastError();  // not visible to this process
  return status == cudaSuccess && reaches != 0;
}

std::string export_memory(const at::Tensor& memory) {
  const auto data = reinterpret_cast<CUdeviceptr>(memory.const_data_ptr());
  CUdeviceptr allocation = 0;
  size_t bytes = 0;
  const CUresult status = peers_detail::get_address_range()(&allocation, &bytes, data);
  if (status != CUDA_SUCCESS)
    throw CudaError(static_cast<int>(status),
                    fmt::format("cuMemGetAddressRange failed: error {}", static_cast<int>(status)));
  peers_detail::Exported exported{};
  exported.offset = data - allocation;
  OSDN_CUDA_CHECK(cudaIpcGetMemHandle(&exported.allocation, reinterpret_cast<void*>(allocation)));
  std::string text(sizeof(exported), '\0');
  std::memcpy(text.data(), &exported, sizeof(exported));
  return text;
}

PeerMemory::PeerMemory(const std::string& exported) : allocation_(nullptr, peers_detail::close_memory) {
  peers_detail::Exported memory{};
  OSDN_ASSERT(exported.size() == sizeof(memory), "exported memory of {} bytes", exported.size());
  std::memcpy(&memory, exported.data(), sizeof(memory));
  void* allocation = nullptr;
  OSDN_CUDA_CHECK(cudaIpcOpenMemHandle(&allocation, memory.allocation, cudaIpcMemLazyEnablePeerAccess));
  allocation_.reset(allocation);
  data_ = static_cast<const char*>(allocation) + memory.offset;
}

DeviceFlags::DeviceFlags(uint32_t* flags, size_t bytes) : flags_(nullptr, peers_detail::unregister) {
  OSDN_CUDA_CHECK(cudaHostRegister(flags, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable));
  flags_.reset(flags);
  void* address = nullptr;
  OSDN_CUDA_CHECK(cudaHostGetDevicePointer(&address, flags, 0));
  address_ = reinterpret_cast<uint64_t>(address);
}

void DeviceFlags::raise(const std::vector<size_t>& flags) {
  std::vector<CUstreamBatchMemOpParams> operations;
  for (const size_t flag : flags)
    operations.push_back(peers_detail::write_operation(address_ + flag * sizeof(uint32_t), 1));
  peers_detail::queue_operations(operations);
}

void DeviceFlags::await(size_t flag) {
  const uint64_t address = address_ + flag * sizeof(uint32_t);
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = address;
  operation.waitValue.value = 1;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  std::vector<CUstreamBatchMemOpParams> operations = {operation, peers_detail::write_operation(address, 0)};
  peers_detail::queue_operations(operations);
}

void copy_memory(void* to, const void* from, size_t bytes) {
  OSDN_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, current_stream()));
}

struct SideStream::Stream {
  cudaStream_t stream = nullptr;
  c10::DeviceIndex device = 0;
};

SideStream::SideStream() : stream_(std::make_unique<Stream>()) {
  stream_->device = c10::cuda::current_device();
  OSDN_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_->stream, cudaStreamNonBlocking));
}

SideStream::~SideStream() {
  if (cudaStreamDestroy(stream_->stream) != cudaSuccess) cudaGetLastError();
}

void SideStream::run(const std::function<void()>& work) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(stream_->stream, stream_->device));
  work();
}

}  // namespace osdn
