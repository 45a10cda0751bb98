#include "ops/short_conv.h"

#include "tests/bench/differentiable.h"

namespace osdn::bench {
namespace {

// q, k and v in one call: 3 D channels, four taps.
std::vector<Case> short_conv_cases(at::Device device) {
  const at::ScalarType dtype = training_dtype(device);
  const int64_t num_sequences = device.is_cuda() ? 4 : 16;
  const int64_t length = device.is_cuda() ? 2048 : 256;
  const int64_t channels = 3 * (device.is_cuda() ? 1024 : 256);
  const int64_t rows = num_sequences * length;
  const auto sequences = ops::Sequences::equal(num_sequences, length, device);
  // The reference goes token by token: the check takes a short piece.
  const auto few = ops::Sequences::equal(1, 16, device);
  const double bytes = static_cast<double>(rows * channels) * (dtype == at::kFloat ? 4 : 2);
  DifferentiableOp op;
  op.shape =
      "S" + std::to_string(num_sequences) + " T" + std::to_string(length) + " D" + std::to_string(channels);
  op.inputs = {random({rows, channels}, dtype, device, 1), random({channels, 1, 4}, dtype, device, 2)};
  op.weights = {1};
  op.op = [sequences](const Tensors& i, const Tensors& s) {
    return ops::short_conv({.x = i[0], .weight = {i[1], s[1]}, .initial_state = {}, .sequences = sequences})
        .y;
  };
  op.forward_bytes = 2 * bytes;
  op.backward_bytes = 3 * bytes;
  op.tolerance = dtype == at::kFloat ? 1e-5 : 4e-3;
  std::vector<Case> cases = forward_and_backward(op);
  DifferentiableOp small = op;
  small.inputs = {random({16, channels}, dtype, device, 1), random({channels, 1, 4}, dtype, device, 2)};
  small.op = [few](const Tensors& i, const Tensors& s) {
    return ops::short_conv({.x = i[0], .weight = {i[1], s[1]}, .initial_state = {}, .sequences = few}).y;
  };
  small.reference = [few](const Tensors& i) {
    return ops::short_conv_ref({.x = i[0], .weight = {i[1], {}}, .initial_state = {}, .sequences = few}).y;
  };
  for (Case& c : cases) c.error = [small] { return differentiable_detail::worst_error(small); };
  return cases;
}

const Registrar kShortConv("short_conv", short_conv_cases);

}  // namespace
}  // namespace osdn::bench
