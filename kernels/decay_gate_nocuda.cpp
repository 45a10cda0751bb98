#include "base/error.h"
#include "kernels/decay_gate.h"

namespace osdn::kernels {

size_t workspace_bytes(const DecayGateBackwardArgs&) { return 0; }

void launch(const DecayGateForwardArgs&, CUstream_st*) {
  throw EnvironmentError("decay_gate: this program was built without CUDA");
}

void launch(const DecayGateBackwardArgs&, void*, CUstream_st*) {
  throw EnvironmentError("decay_gate: this program was built without CUDA");
}

}  // namespace osdn::kernels
