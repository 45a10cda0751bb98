// Work on the GPU, recorded once and replayed: a CUDA graph. What is recorded may neither synchronise nor
// read device memory on the host.
#pragma once

#include <functional>
#include <memory>

namespace osdn {

class DeviceGraph {
 public:
  DeviceGraph();
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  /// Runs `work` once to make what it makes lazily, then records it on a stream of its own. Tensors that it
  /// reads and writes must live as long as the graph; what it allocates belongs to the graph. InternalError
  /// in a build without CUDA.
  void capture(const std::function<void()>& work);

  /// Records `work`, which ran before, without running it. With the memory of another graph: the two are
  /// never replayed at the same time, and what the other has allocated and still holds stays untouched.
  void record(const std::function<void()>& work, const DeviceGraph* sharing = nullptr);

  /// Queues the recorded work on the current stream.
  void replay();

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

/// While it lives, LibTorch calls that make the host wait for the GPU throw.
class ForbidSynchronization {
 public:
  ForbidSynchronization();
  ~ForbidSynchronization();
  ForbidSynchronization(const ForbidSynchronization&) = delete;
  ForbidSynchronization& operator=(const ForbidSynchronization&) = delete;
};

}  // namespace osdn
