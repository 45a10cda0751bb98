#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "tensor/device_graph.h"

namespace osdn {

struct DeviceGraph::Graph {
  at::cuda::CUDAGraph graph;
};

DeviceGraph::DeviceGraph() = default;
DeviceGraph::~DeviceGraph() = default;

void DeviceGraph::capture(const std::function<void()>& work) {
  c10::cuda::device_synchronize();
  {
    const c10::cuda::CUDAStreamGuard guard(at::cuda::getStreamFromPool());
    work();
  }
  record(work);
}

void DeviceGraph::record(const std::function<void()>& work, const DeviceGraph* sharing) {
  graph_ = std::make_unique<Graph>();
  c10::cuda::device_synchronize();
  // What LibTorch keeps of earlier work would not serve the graph, which has memory of its own.
  c10::cuda::CUDACachingAllocator::emptyCache();
  const c10::cuda::CUDAStreamGuard guard(at::cuda::getStreamFromPool());
  const c10::cuda::MempoolId_t memory =
      sharing ? sharing->graph_->graph.pool() : c10::cuda::MempoolId_t{0, 0};
  // Other threads go on: one watches collectives, one writes a checkpoint.
  graph_->graph.capture_begin(memory, cudaStreamCaptureModeThreadLocal);
  try {
    work();
  } catch (...) {
    try {
      graph_->graph.capture_end();  // also fails when the work broke the capture; the work's error says why
    } catch (...) {
    }
    throw;
  }
  graph_->graph.capture_end();
}

void DeviceGraph::replay() { graph_->graph.replay(); }

ForbidSynchronization::ForbidSynchronization() {
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
}
ForbidSynchronization::~ForbidSynchronization() {
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
}

}  // namespace osdn
