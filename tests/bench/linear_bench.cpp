#include "ops/linear.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/sequences.h"
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

// Decoding with the 1.3B models: q, k, v and beta; the MLP's two; the output projection; the head. "apart":
// as it decodes, every row the bits that it has alone; "library": as it trains.
std::vector<Case> decoding_cases(at::Device device) {
  std::vector<Case> cases;
  if (!device.is_cuda()) return cases;
  for (const auto& [in, out] :
       {std::pair<int64_t, int64_t>{2048, 2048}, {2048, 6160}, {2048, 11264}, {5632, 2048}, {2048, 32000}})
    for (const int64_t rows : {1, 4, 8, 16, 32, 64, 256, 2048}) {
      struct Operands {
        at::Tensor x, w;  // [N, D_in], [D_out, D_in]
      };
      const auto operands = std::make_shared<Operands>();
      const auto product = [operands](bool apart) {
        const at::NoGradGuard no_grad;
        std::optional<ops::SequencesApart> guard;
        if (apart) guard.emplace();
        return ops::linear(operands->x, {operands->w});
      };
      Case test;
      test.shape = "N" + std::to_string(rows) + " in" + std::to_string(in) + " out" + std::to_string(out);
      test.dtype = at::kBFloat16;
      test.device = device;
      test.bytes = 2.0 * static_cast<double>(rows * in + in * out + rows * out);
      test.flop = 2.0 * static_cast<double>(rows * in) * static_cast<double>(out);
      test.tolerance = 4e-3;
      test.capturable = true;
      for (const bool apart : {true, false}) {
        test.pass = apart ? "apart" : "library";
        test.error = [operands, product, apart, device, rows = rows, in = in, out = out] {
          if (!operands->x.defined()) {
            operands->x = random({rows, in}, at::kBFloat16, device, 1);
            operands->w = random({out, in}, at::kBFloat16, device, 2);
          }
          const at::Tensor expected = at::mm(operands->x.to(at::kDouble), operands->w.to(at::kDouble).t());
          return relative_error(product(apart), expected);
        };
        test.run = [product, apart] { product(apart); };
        cases.push_back(test);
      }
    }
  return cases;
}

std::vector<Case> linear_cases(at::Device device) {
  const int64_t rows = device.is_cuda() ? 8192 : 4096;
  const int64_t width = device.is_cuda() ? 1024 : 256;
  const int64_t inner = device.is_cuda() ? 2816 : 768;
  std::vector<Case> cases;
  for (const auto& [in, out] :
       {std::pair{width, width}, std::pair{width, 2 * inner}, std::pair{inner, width}})
    for (const Case& c : forward_and_backward(linear_op(device, rows, in, out))) cases.push_back(c);
  for (const Case& c : decoding_cases(device)) cases.push_back(c);
  return cases;
}

const Registrar kLinear("linear", linear_cases);

}  // namespace
}  // namespace osdn::bench
