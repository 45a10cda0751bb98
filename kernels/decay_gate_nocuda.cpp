#include "base/error.h"
#include "kernels/decay_gate.h"

namespace osdn::kernels {

int64_t decay_gate_num_partials(int64_t) {
  throw EnvironmentError("decay_gate: this program was built without CUDA");
}

void launch(const DecayGateForwardArgs&, CUstream_st*) {
  throw EnvironmentError("decay_gate: this program was built without CUDA");
}

void launch(const DecayGateBackwardArgs&, CUstream_st*) {
  throw EnvironmentError("decay_gate: this program was built without CUDA");
}

}  // namespace osdn::kernels
