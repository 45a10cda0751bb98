#include "ops/linear_cross_entropy.h"

#include "tests/bench/differentiable.h"

namespace osdn::bench {
namespace {

std::vector<Case> head_cases(at::Device device) {
  const at::ScalarType dtype = training_dtype(device);
  const int64_t rows = device.is_cuda() ? 8192 : 4096;
  const int64_t width = device.is_cuda() ? 1024 : 256;
  const int64_t vocabulary = device.is_cuda() ? 32000 : 2048;
  const at::Tensor uniform = random({rows}, at::kDouble, at::kCPU, 3).abs().clamp_max(4).div(4.001);
  const at::Tensor targets = (uniform * static_cast<double>(vocabulary)).to(at::kLong).to(device);
  const double product =
      2 * static_cast<double>(rows) * static_cast<double>(width) * static_cast<double>(vocabulary);
  DifferentiableOp op;
  op.shape = "N" + std::to_string(rows) + " D" + std::to_string(width) + " V" + std::to_string(vocabulary);
  op.inputs = {random({rows, width}, dtype, device, 1),
               random({vocabulary, width}, dtype, device, 2) / std::sqrt(static_cast<double>(width))};
  op.weights = {1};
  op.op = [targets](const Tensors& i, const Tensors& s) {
    return ops::linear_cross_entropy(i[0], {i[1], s[1]}, targets);
  };
  op.reference = [targets](const Tensors& i) { return ops::linear_cross_entropy_ref(i[0], i[1], targets); };
  op.forward_flop = product;
  op.backward_flop = 3 * product;  // the logits again, and the two gradients
  op.tolerance = dtype == at::kFloat ? 1e-5 : 1.5e-2;
  return forward_and_backward(op);
}

const Registrar kHead("linear_cross_entropy", head_cases);

}  // namespace
}  // namespace osdn::bench
