// What processes of one host need to move data between their GPUs without a kernel: the memory of another
// process, flags that streams raise and wait for, a stream beside the current one. Copies are left to the
// copy engines and waits to the front end of the GPU, so that neither takes a multiprocessor from the model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensor/fwd.h"

namespace osdn {

/// Why the current GPU cannot do what is declared here; empty where it can.
std::string no_peers_reason();

/// Where the current GPU sits in its host, e.g. "0000:19:00.0".
std::string gpu_address();
/// Whether the current GPU reaches the memory of the one that sits there, which may be itself.
bool can_reach_gpu(const std::string& address);

/// What another process needs to open a tensor's memory on the current GPU. CudaError for memory of a kind
/// that cannot be opened.
std::string export_memory(const at::Tensor& memory);

/// Memory that another process exported, for reading. That process must keep it.
class PeerMemory {
 public:
  explicit PeerMemory(const std::string& exported);

  const void* data() const { return data_; }

 private:
  std::unique_ptr<void, void (*)(void*)> allocation_;
  const void* data_ = nullptr;
};

/// Flags, 0 or 1, in memory of the host that processes share and their GPUs see. May be recorded in a graph.
class DeviceFlags {
 public:
  /// The memory, whole pages of it, must outlive the flags.
  DeviceFlags(uint32_t* flags, size_t bytes);

  /// Sets flags to 1 once what was queued on the current stream is done, and visible to every GPU and process
  /// that finds one set.
  void raise(const std::vector<size_t>& flags);
  /// Work queued from here on waits until the flag is 1, and it becomes 0.
  void await(size_t flag);

 private:
  std::unique_ptr<uint32_t, void (*)(uint32_t*)> flags_;  // on the host, registered
  uint64_t address_ = 0;                                  // for the GPU
};

/// Queues a copy from memory of this or another process on the current stream.
void copy_memory(void* to, const void* from, size_t bytes);

/// A stream beside the others.
class SideStream {
 public:
  SideStream();
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  /// With it as the current stream.
  void run(const std::function<void()>& work);

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

}  // namespace osdn
