#include "ops/decay_gate.h"

#include "tests/bench/differentiable.h"

namespace osdn::bench {
namespace {

std::vector<Case> decay_gate_cases(at::Device device) {
  const at::ScalarType dtype = training_dtype(device);
  const int64_t rows = device.is_cuda() ? 32768 : 4096;
  const int64_t heads = device.is_cuda() ? 8 : 4;
  const int64_t channels = device.is_cuda() ? 128 : 64;
  // Of one array, a or the decays, which a decay by channel has in the dtype of a.
  const double bytes = static_cast<double>(rows * heads * channels) * (dtype == at::kFloat ? 4 : 2);
  DifferentiableOp op;
  op.shape = "N" + std::to_string(rows) + " HV" + std::to_string(heads) + " K" + std::to_string(channels);
  op.inputs = {random({rows, heads, channels}, dtype, device, 1), random({heads}, at::kFloat, device, 2),
               random({heads * channels}, at::kFloat, device, 3)};
  op.weights = {1, 2};
  op.op = [](const Tensors& i, const Tensors& sinks) {
    return ops::decay_gate(
        {.a = i[0], .log_rate = {i[1], sinks[1]}, .bias = {i[2], sinks[2]}, .rounded = true});
  };
  op.reference = [](const Tensors& i) { return ops::decay_gate_ref(i[0], i[1], i[2], std::nullopt); };
  op.forward_bytes = 2 * bytes;
  op.backward_bytes = 3 * bytes;
  op.tolerance = dtype == at::kFloat ? 1e-4 : 4e-3;
  return forward_and_backward(op);
}

const Registrar kDecayGate("decay_gate", decay_gate_cases);

}  // namespace
}  // namespace osdn::bench
