#include "ops/linear.h"

#include "tests/bench/differentiable.h"

namespace osdn::bench {
namespace {

// The projections of the quickstart model and of the 340M one: q, k, v and beta; the MLP's two.
DifferentiableOp linear_op(at::Device device, int64_t rows, int64_t in, int64_t out) {
  const at::ScalarType dtype = training_dtype(device);
  const auto n = static_cast<double>(rows);
  const auto d_in = static_cast<double>(in);
  const auto d_out = static_cast<double>(out);
  const double size = dtype == at::kFloat ? 4 : 2;
  DifferentiableOp op;
  op.shape = "N" + std::to_string(rows) + " in" + std::to_string(in) + " out" + std::to_string(out);
  op.inputs = {random({rows, in}, dtype, device, 1), random({out, in}, dtype, device, 2)};
  op.weights = {1};
  op.op = [](const Tensors& i, const Tensors& s) { return ops::linear(i[0], {i[1], s[1]}); };
  op.reference = [](const Tensors& i) { return ops::linear_ref(i[0], i[1]); };
  op.forward_flop = 2 * n * d_in * d_out;
  op.backward_flop = 2 * op.forward_flop;
  op.forward_bytes = size * (n * d_in + d_in * d_out + n * d_out);
  op.backward_bytes = 2 * op.forward_bytes;
  op.tolerance = dtype == at::kFloat ? 1e-5 : 4e-3;
  return op;
}

std::vector<Case> linear_cases(at::Device device) {
  const int64_t rows = device.is_cuda() ? 8192 : 4096;
  const int64_t width = device.is_cuda() ? 1024 : 256;
  const int64_t inner = device.is_cuda() ? 2816 : 768;
  std::vector<Case> cases;
  for (const auto& [in, out] :
       {std::pair{width, width}, std::pair{width, 2 * inner}, std::pair{inner, width}})
    for (const Case& c : forward_and_backward(linear_op(device, rows, in, out))) cases.push_back(c);
  return cases;
}

const Registrar kLinear("linear", linear_cases);

}  // namespace
}  // namespace osdn::bench
