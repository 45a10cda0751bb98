// Device memory that mirrors a test's buffer. What neither the test nor a kernel has written stays unwritten
// on the device, so that a sanitizer finds a kernel that reads it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/cuda.h"

namespace osdn::kernels::emulation_test {

class DeviceCopy {
 public:
  /// Of `count` elements at `host`, which stay there. CudaError where there is no GPU, or no memory.
  DeviceCopy(void* host, size_t count, size_t element)
      : host_(static_cast<unsigned char*>(host)),
        element_(element),
        known_(host_, host_ + count * element),
        memory_(nullptr, [](void* memory) { cudaFree(memory); }) {
    void* memory = nullptr;
    OSDN_CUDA_CHECK(cudaMalloc(&memory, std::max<size_t>(known_.size(), 1)));
    memory_.reset(memory);
    all().push_back(this);
  }
  ~DeviceCopy() { all().erase(std::find(all().begin(), all().end(), this)); }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  void* memory() const { return memory_.get(); }

  /// Brings to the device what tests have written since.
  static void upload_all() {
    for (DeviceCopy* copy : all()) copy->upload();
  }
  /// Brings all buffers what kernels have written.
  static void download_all() {
    OSDN_CUDA_CHECK(cudaDeviceSynchronize());
    for (DeviceCopy* copy : all()) copy->download();
  }

 private:
  static std::vector<DeviceCopy*>& all() {
    static std::vector<DeviceCopy*> copies;
    return copies;
  }
  bool is_new(size_t at) const { return std::memcmp(host_ + at, known_.data() + at, element_) != 0; }
  void upload() {
    for (size_t begin = 0; begin < known_.size(); begin += element_) {
      if (!is_new(begin)) continue;
      size_t end = begin;
      while (end < known_.size() && is_new(end)) end += element_;
      OSDN_CUDA_CHECK(cudaMemcpy(static_cast<unsigned char*>(memory()) + begin, host_ + begin, end - begin,
                                 cudaMemcpyHostToDevice));
      begin = end;
    }
    std::copy(host_, host_ + known_.size(), known_.data());
  }
  void download() {
    OSDN_CUDA_CHECK(cudaMemcpy(host_, memory(), known_.size(), cudaMemcpyDeviceToHost));
    std::copy(host_, host_ + known_.size(), known_.data());
  }

  unsigned char* host_;
  size_t element_;
  std::vector<unsigned char> known_;  // what the device has, or the test's marks of what nobody has written
  std::unique_ptr<void, void (*)(void*)> memory_;
};

}  // namespace osdn::kernels::emulation_test
