#include "ops/rms_norm.h"

#include "tests/bench/differentiable.h"

namespace osdn::bench {
namespace {

constexpr double kNormEps = 1e-6;

// `moved`: how many times the forward reads or writes an activation of this size.
DifferentiableOp norm_op(at::Device device, const std::string& form, int64_t rows, int64_t width,
                         double moved) {
  const at::ScalarType dtype = training_dtype(device);
  const double bytes = static_cast<double>(rows * width) * (dtype == at::kFloat ? 4 : 2);
  DifferentiableOp op;
  op.shape = form + " R" + std::to_string(rows) + " D" + std::to_string(width);
  op.inputs = {random({width}, at::kFloat, device, 1), random({rows, width}, dtype, device, 2),
               random({rows, width}, dtype, device, 3)};
  op.weights = {0};
  op.forward_bytes = moved * bytes;
  op.backward_bytes = (moved + 1) * bytes;
  op.tolerance = dtype == at::kFloat ? 1e-5 : 8e-3;
  return op;
}

std::vector<Case> norm_cases(at::Device device) {
  const int64_t rows = device.is_cuda() ? 8192 : 4096;
  const int64_t width = device.is_cuda() ? 1024 : 256;
  const int64_t heads = device.is_cuda() ? 8 : 4;
  DifferentiableOp plain = norm_op(device, "plain", rows, width, 2);
  plain.inputs.pop_back();
  plain.op = [](const Tensors& i, const Tensors& s) { return ops::rms_norm(i[1], {i[0], s[0]}, kNormEps); };
  plain.reference = [](const Tensors& i) { return ops::rms_norm_ref(i[1], i[0], kNormEps); };
  DifferentiableOp gated = norm_op(device, "gated", rows * heads, width / heads, 3);
  gated.op = [](const Tensors& i, const Tensors& s) {
    return ops::gated_rms_norm(i[1], i[2], {i[0], s[0]}, kNormEps, ops::GateActivation::kSwish);
  };
  gated.reference = [](const Tensors& i) {
    return ops::gated_rms_norm_ref(i[1], i[2], i[0], kNormEps, ops::GateActivation::kSwish);
  };
  DifferentiableOp added = norm_op(device, "with residual", rows, width, 4);
  added.op = [](const Tensors& i, const Tensors& s) {
    return ops::add_rms_norm(i[1], i[2], {i[0], s[0]}, kNormEps).normalized;
  };
  added.reference = [](const Tensors& i) {
    return ops::add_rms_norm_ref(i[1], i[2], i[0], kNormEps).normalized;
  };
  std::vector<Case> cases;
  for (const DifferentiableOp& op : {plain, gated, added})
    for (const Case& c : forward_and_backward(op)) cases.push_back(c);
  // The activations decide the dtype that is reported, not the fp32 weight.
  for (Case& c : cases) c.dtype = training_dtype(device);
  return cases;
}

const Registrar kRmsNorm("rms_norm", norm_cases);

}  // namespace
}  // namespace osdn::bench
