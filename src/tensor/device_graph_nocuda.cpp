#include "base/error.h"
#include "tensor/device_graph.h"

namespace osdn {

struct DeviceGraph::Graph {};

DeviceGraph::DeviceGraph() = default;
DeviceGraph::~DeviceGraph() = default;

void DeviceGraph::capture(const std::function<void()>&) {
  throw InternalError("device graph: this program was built without CUDA");
}
void DeviceGraph::record(const std::function<void()>&, const DeviceGraph*) {
  throw InternalError("device graph: this program was built without CUDA");
}
void DeviceGraph::replay() { throw InternalError("device graph: this program was built without CUDA"); }

ForbidSynchronization::ForbidSynchronization() = default;
ForbidSynchronization::~ForbidSynchronization() {}  // the other build has something to undo: not trivial

}  // namespace osdn
