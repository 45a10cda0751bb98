// The checks that every differentiable op passes, written once: values and gradients against the reference in
// float64, finite differences, gradient sinks, layouts of the upstream gradient.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tensor/gradient.h"
#include "tests/support/test.h"

namespace osdn::test {

using Tensors = std::vector<at::Tensor>;

/// An op under test. `inputs` are float64 on CPU and all differentiable; other arguments are captured. Both
/// functions see the inputs in the dtype and on the device of the check.
struct OpCase {
  std::string name;
  std::vector<std::string> input_names;
  Tensors inputs;
  /// sinks[i] belongs to inputs[i]; undefined where the gradient goes through autograd.
  std::function<Tensors(const Tensors& inputs, const Tensors& sinks)> op;
  std::function<Tensors(const Tensors& inputs)> reference;
  std::vector<size_t> weights;  // which inputs are parameters, so have sinks
};

/// Standard normal values, the same for equal seeds.
inline at::Tensor normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kDouble) {
  at::manual_seed(seed);
  return at::randn(shape, at::TensorOptions().dtype(type));
}

struct Evaluation {
  Tensors outputs;
  Tensors gradients;  // one for each input
};

/// sum(output * upstream) over all outputs, upstream fixed by the output's index. `round_to`: the dtype that
/// the upstream gradients have in the op under test.
inline at::Tensor weighted_sum(const Tensors& outputs, at::ScalarType round_to) {
  at::Tensor total;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor upstream =
        normal(outputs[i].sizes(), 900 + i).to(round_to).to(outputs[i].device(), outputs[i].scalar_type());
    const at::Tensor part = (outputs[i] * upstream).to(at::kDouble).sum();
    total = total.defined() ? total + part : part;
  }
  return total;
}

inline Tensors leaves(const Tensors& inputs, at::ScalarType type, at::Device device) {
  Tensors copies;
  for (const at::Tensor& input : inputs)
    copies.push_back(input.detach().to(type).to(device).clone().set_requires_grad(true));
  return copies;
}

inline Evaluation evaluate(const std::function<Tensors(const Tensors&)>& function, const Tensors& inputs,
                           at::ScalarType round_to) {
  Evaluation result;
  result.outputs = function(inputs);
  weighted_sum(result.outputs, round_to).backward();
  for (const at::Tensor& input : inputs) result.gradients.push_back(input.grad());
  return result;
}

/// Outputs and every gradient against the reference, in float64 on CPU, of the inputs as rounded to `type`.
inline void check_against_reference(const OpCase& test, at::ScalarType type, at::Device device,
                                    double tolerance) {
  INFO(test.name << " " << c10::toString(type) << " " << device.str());
  const Tensors inputs = leaves(test.inputs, type, device);
  const Evaluation actual =
      evaluate([&](const Tensors& in) { return test.op(in, Tensors(in.size())); }, inputs, type);
  const Tensors rounded = leaves(inputs, at::kDouble, at::kCPU);
  const Evaluation expected = evaluate(test.reference, rounded, type);
  for (size_t i = 0; i < expected.outputs.size(); ++i)
    check_close(test.name + ": output " + std::to_string(i), actual.outputs[i], expected.outputs[i],
                tolerance);
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_close(test.name + ": gradient of " + test.input_names[i], actual.gradients[i],
                expected.gradients[i], tolerance);
    CHECK(actual.gradients[i].scalar_type() == type);
  }
}

/// Every gradient against central differences of the op itself. Their own error is about 1e-9 relative.
inline void check_finite_differences(const OpCase& test, double tolerance = 1e-6) {
  const Tensors inputs = leaves(test.inputs, at::kDouble, at::kCPU);
  const auto run = [&](const Tensors& in) { return test.op(in, Tensors(in.size())); };
  const Evaluation actual = evaluate(run, inputs, at::kDouble);
  Tensors points;
  for (const at::Tensor& input : inputs) points.push_back(input.detach().clone());
  for (size_t i = 0; i < points.size(); ++i) {
    const auto value = [&] { return weighted_sum(run(points), at::kDouble).item<double>(); };
    check_close(test.name + ": finite difference of " + test.input_names[i], actual.gradients[i],
                finite_difference(value, points[i]), tolerance);
  }
}

/// Sinks receive what autograd returns, added to what they hold, at every backward, also when nothing else
/// requires grad. The tolerance is that of the sums' rounding.
inline void check_sinks(const OpCase& test, at::ScalarType type, at::Device device, double tolerance) {
  const Tensors by_autograd = leaves(test.inputs, type, device);
  const Evaluation expected =
      evaluate([&](const Tensors& in) { return test.op(in, Tensors(in.size())); }, by_autograd, type);
  for (const bool others_require_grad : {true, false}) {
    Tensors inputs = leaves(test.inputs, type, device);
    Tensors sinks(inputs.size());
    if (!others_require_grad)
      for (at::Tensor& input : inputs) input = input.detach();
    for (const size_t w : test.weights) {
      inputs[w] = inputs[w].detach();
      sinks[w] = at::full(inputs[w].sizes(), 0.5, inputs[w].options().dtype(accumulation_type(type)));
    }
    for (int pass = 0; pass < 2; ++pass) weighted_sum(test.op(inputs, sinks), type).backward();
    for (const size_t w : test.weights)
      check_close(test.name + ": sink of " + test.input_names[w], sinks[w] - 0.5, 2 * expected.gradients[w],
                  tolerance);
    for (size_t i = 0; others_require_grad && i < inputs.size(); ++i)
      if (inputs[i].requires_grad())
        check_close(test.name + ": beside sinks, " + test.input_names[i], inputs[i].grad(),
                    2 * expected.gradients[i], tolerance);
  }
}

/// The first output's gradient arrives expanded (stride 0), as every second column, as columns of a wider
/// buffer and transposed: the same gradients as from a contiguous one, bit for bit.
inline void check_upstream_layouts(const OpCase& test) {
  const at::Tensor probe = test.op(test.inputs, Tensors(test.inputs.size()))[0];
  const int64_t rows = probe.size(0);
  const int64_t columns = probe.size(1);
  const at::Tensor wide = normal({rows, 3 * columns}, 77);
  const Tensors layouts = {at::ones({1, 1}, at::kDouble).expand({rows, columns}),
                           wide.slice(1, 0, 2 * columns, 2), wide.narrow(1, columns, columns),
                           normal({columns, rows}, 78).t()};
  for (const at::Tensor& layout : layouts) {
    Evaluation results[2];
    for (const bool contiguous : {false, true}) {
      const Tensors inputs = leaves(test.inputs, at::kDouble, at::kCPU);
      const at::Tensor output = test.op(inputs, Tensors(inputs.size()))[0];
      output.backward(contiguous ? layout.contiguous() : layout);
      for (const at::Tensor& input : inputs)
        results[contiguous].gradients.push_back(input.grad().defined() ? input.grad()
                                                                       : at::zeros_like(input));
    }
    for (size_t i = 0; i < test.inputs.size(); ++i) {
      INFO(test.name << ": " << test.input_names[i]);
      CHECK(at::equal(results[0].gradients[i], results[1].gradients[i]));
    }
  }
}

/// Outputs and gradients have the same bits with one thread and with several.
inline void check_thread_invariance(const OpCase& test) {
  Evaluation results[2];
  const int before = at::get_num_threads();
  for (const bool several : {false, true}) {
    at::set_num_threads(several ? 3 : 1);
    const Tensors inputs = leaves(test.inputs, at::kFloat, at::kCPU);
    results[several] =
        evaluate([&](const Tensors& in) { return test.op(in, Tensors(in.size())); }, inputs, at::kFloat);
  }
  at::set_num_threads(before);
  for (size_t i = 0; i < results[0].outputs.size(); ++i)
    CHECK(at::equal(results[0].outputs[i], results[1].outputs[i]));
  for (size_t i = 0; i < test.inputs.size(); ++i) {
    INFO(test.name << ": " << test.input_names[i]);
    CHECK(at::equal(results[0].gradients[i], results[1].gradients[i]));
  }
}

/// The message of the exception of type E that `call` throws; fails when it throws none.
template <typename E>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  FAIL("no exception");
  return {};
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace osdn::test
