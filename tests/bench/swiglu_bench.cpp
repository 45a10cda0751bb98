#include "ops/swiglu.h"

#include "tests/bench/differentiable.h"

namespace osdn::bench {
namespace {

std::vector<Case> swiglu_cases(at::Device device) {
  const at::ScalarType dtype = training_dtype(device);
  const int64_t rows = device.is_cuda() ? 8192 : 4096;
  const int64_t inner = device.is_cuda() ? 2816 : 768;
  const double bytes = static_cast<double>(rows * inner) * (dtype == at::kFloat ? 4 : 2);
  DifferentiableOp op;
  op.shape = "N" + std::to_string(rows) + " I" + std::to_string(inner);
  op.inputs = {random({rows, 2 * inner}, dtype, device, 1)};
  op.op = [](const Tensors& i, const Tensors&) { return ops::swiglu(i[0]); };
  op.reference = [](const Tensors& i) { return ops::swiglu_ref(i[0]); };
  op.forward_bytes = 3 * bytes;
  op.backward_bytes = 5 * bytes;
  op.tolerance = dtype == at::kFloat ? 1e-5 : 4e-3;
  return forward_and_backward(op);
}

const Registrar kSwiglu("swiglu", swiglu_cases);

}  // namespace
}  // namespace osdn::bench
