#include "ops/attention.h"

#include "tests/bench/differentiable.h"

namespace osdn::bench {
namespace {

std::vector<Case> attention_cases(at::Device device) {
  const at::ScalarType dtype = training_dtype(device);
  // The reference goes token by token, so it checks one short sequence; a longer one is timed on a GPU.
  const int64_t length = device.is_cuda() ? 512 : 256;
  const int64_t heads = device.is_cuda() ? 16 : 4;
  constexpr int64_t kHeadDim = 64;
  const auto sequences = ops::Sequences::equal(1, length, device);
  const auto on_cpu = ops::Sequences::equal(1, length, at::kCPU);
  const double elements = static_cast<double>(length * heads * kHeadDim);
  DifferentiableOp op;
  op.shape = "T" + std::to_string(length) + " H" + std::to_string(heads) + " D" + std::to_string(kHeadDim);
  for (uint64_t seed = 1; seed <= 3; ++seed)
    op.inputs.push_back(random({length, heads, kHeadDim}, dtype, device, seed));
  op.op = [sequences](const Tensors& i, const Tensors&) {
    return ops::attention({.q = i[0], .k = i[1], .v = i[2], .queries = sequences, .keys = sequences});
  };
  op.reference = [on_cpu](const Tensors& i) {
    return ops::attention_ref({.q = i[0], .k = i[1], .v = i[2], .queries = on_cpu, .keys = on_cpu});
  };
  op.forward_bytes = 4 * elements * (dtype == at::kFloat ? 4 : 2);
  op.backward_bytes = 2 * op.forward_bytes;
  op.forward_flop = 2 * elements * static_cast<double>(length);
  op.backward_flop = 2.5 * op.forward_flop;
  op.tolerance = dtype == at::kFloat ? 1e-4 : 2e-2;
  return forward_and_backward(op);
}

const Registrar kAttention("attention", attention_cases);

}  // namespace
}  // namespace osdn::bench
