// Benchmark cases of a differentiable op: the forward alone as in evaluation, and forward with backward as in
// training, parameters with sinks. Checked against the op's reference in float64.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "apps/bench/case.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::bench {

using Tensors = std::vector<at::Tensor>;

struct DifferentiableOp {
  std::string shape;
  Tensors inputs;               // in the dtype and on the device of the benchmark
  std::vector<size_t> weights;  // which inputs are parameters
  std::function<at::Tensor(const Tensors& inputs, const Tensors& sinks)> op;
  std::function<at::Tensor(const Tensors& inputs)> reference;
  double forward_bytes = 0;
  double backward_bytes = 0;
  double forward_flop = 0;
  double backward_flop = 0;
  double tolerance = 0;  // of the output and of every gradient
};

/// Activations are float32 on CPU and bf16 on CUDA, as in training.
inline at::ScalarType training_dtype(at::Device device) {
  return device.is_cuda() ? at::kBFloat16 : at::kFloat;
}

namespace differentiable_detail {

struct Prepared {
  Tensors inputs;
  Tensors sinks;
};

inline Prepared prepare(const DifferentiableOp& op) {
  Prepared result;
  for (const at::Tensor& input : op.inputs)
    result.inputs.push_back(input.detach().clone().set_requires_grad(true));
  result.sinks.resize(op.inputs.size());
  for (const size_t w : op.weights) {
    result.inputs[w] = result.inputs[w].detach();
    result.sinks[w] = at::zeros_like(op.inputs[w], accumulation_type(op.inputs[w].scalar_type()));
  }
  return result;
}

inline double worst_error(const DifferentiableOp& op) {
  const Prepared prepared = prepare(op);
  const at::Tensor y = op.op(prepared.inputs, prepared.sinks);
  const at::Tensor upstream = random(y.sizes(), y.scalar_type(), y.device(), 99);
  y.backward(upstream);
  Tensors truth;
  for (const at::Tensor& input : op.inputs)
    truth.push_back(input.detach().to(at::kDouble).set_requires_grad(true));
  const at::Tensor expected = op.reference(truth);
  expected.backward(upstream.to(at::kDouble));
  double worst = relative_error(y, expected);
  for (size_t i = 0; i < truth.size(); ++i) {
    const at::Tensor& sink = prepared.sinks[i];
    worst =
        std::max(worst, relative_error(sink.defined() ? sink : prepared.inputs[i].grad(), truth[i].grad()));
  }
  return worst;
}

}  // namespace differentiable_detail

inline std::vector<Case> forward_and_backward(const DifferentiableOp& op) {
  namespace detail = differentiable_detail;
  Case forward;
  forward.shape = op.shape;
  forward.pass = "forward";
  forward.dtype = op.inputs[0].scalar_type();
  forward.device = op.inputs[0].device();
  forward.bytes = op.forward_bytes;
  forward.flop = op.forward_flop;
  forward.error = [op] { return detail::worst_error(op); };
  forward.tolerance = op.tolerance;
  const detail::Prepared prepared = detail::prepare(op);
  forward.run = [op, prepared] {
    const at::NoGradGuard no_grad;
    op.op(prepared.inputs, Tensors(prepared.inputs.size()));
  };
  Case both = forward;
  both.pass = "forward+backward";
  both.bytes += op.backward_bytes;
  both.flop += op.backward_flop;
  const at::Tensor probe = op.op(prepared.inputs, prepared.sinks);
  const at::Tensor upstream = random(probe.sizes(), probe.scalar_type(), probe.device(), 99);
  both.run = [op, prepared, upstream] {
    op.op(prepared.inputs, prepared.sinks).backward(upstream);
    for (const at::Tensor& input : prepared.inputs) input.mutable_grad().reset();
  };
  return {forward, both};
}

}  // namespace osdn::bench
