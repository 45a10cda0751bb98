// The CUDA kernels of the short convolution against the reference in float64 on the CPU.
#include <numeric>

#include "kernels/short_conv.h"
#include "tests/ops/short_conv_cases.h"
#include "tests/support/poison.h"

namespace osdn::test::short_conv_cuda_test {

using namespace short_conv_test;  // the cases

const at::Device kDevice(at::kCUDA, 0);

void check_on_device(const Shape& shape) {
  const PoisonedMemory poisoned;
  const OpCase test = make_case(shape);
  check_against_reference(test, at::kFloat, kDevice, kFloatTolerance);
  check_against_reference(test, at::kBFloat16, kDevice, kHalfTolerance);
}

TEST_CASE("the convolution's kernels equal float64 at any length, with and without history",
          "[short_conv_cuda][cuda]") {
  const int64_t length = GENERATE(1, 2, 3, 4, 5, 15, 31, 32, 33, 63, 64, 65, 127, 128, 129, 500);
  const bool with_state = GENERATE(true, false);
  CAPTURE(length, with_state);
  check_on_device({.offsets = {0, length}, .channels = 64, .with_state = with_state});
}

TEST_CASE(
    "the convolution's kernels equal float64 with 2 to 4 taps, few and many channels, with and without SiLU",
    "[short_conv_cuda][cuda]") {
  const int64_t taps = GENERATE(2, 3, 4);
  const int64_t channels = GENERATE(4, 100, 512, 1032);
  const bool silu = GENERATE(true, false);
  CAPTURE(taps, channels, silu);
  check_on_device({.offsets = {0, 40, 75}, .channels = channels, .taps = taps, .silu = silu});
}

TEST_CASE("the convolution's kernels equal float64 in packs of empty, single-token and many documents",
          "[short_conv_cuda][cuda]") {
  std::vector<int64_t> many = {0};
  for (int64_t i = 0; i < 300; ++i) many.push_back(many.back() + i * 7919 % 11);
  std::vector<int64_t> ones(101);
  std::iota(ones.begin(), ones.end(), 0);
  for (const bool with_state : {true, false})
    for (const std::vector<int64_t>& offsets :
         {kPacked, many, ones, std::vector<int64_t>{0, 64, 128, 128}, {0, 30, 34, 61, 66, 66, 67, 200}})
      check_on_device({.offsets = offsets, .channels = 12, .with_state = with_state});
}

TEST_CASE("the convolution's kernels hand states of empty packs on", "[short_conv_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const OpCase test = make_case({.offsets = {0, 0, 0}});
  const Tensors inputs = leaves(test.inputs, at::kFloat, kDevice);
  const Tensors outputs = test.op(inputs, Tensors(3));
  CHECK(outputs[0].size(0) == 0);
  CHECK(at::equal(outputs[1], inputs[2]));
  outputs[1].sum().backward();
  CHECK(at::equal(inputs[2].grad(), at::ones_like(inputs[2])));
  CHECK(at::equal(inputs[1].grad(), at::zeros_like(inputs[1])));
}

TEST_CASE(
    "the convolution's kernels equal float64 in pieces, through any one of them, and hand the rest through",
    "[short_conv_cuda][cuda]") {
  const Shape shape{.offsets = kPacked, .channels = 24, .parts = {8, 4, 12}, .rest = 4};
  check_on_device(shape);
  Shape odd = shape;
  odd.rest = 3;  // rows of 27 numbers: not readable as they lie
  check_on_device(odd);
  check_sinks(make_case(shape), at::kFloat, kDevice, kFloatTolerance);
  const OpCase test = make_case(shape);
  for (const size_t output : {size_t{0}, size_t{1}, size_t{2}, size_t{3}, size_t{4}}) {
    const PoisonedMemory poisoned;
    const Tensors on_device = leaves(test.inputs, at::kFloat, kDevice);
    const Tensors truth = leaves(on_device, at::kDouble, at::kCPU);
    const at::Tensor upstream = normal(test.reference(truth)[output].sizes(), 5);
    test.op(on_device, Tensors(3))[output].backward(upstream.to(kDevice, at::kFloat));
    test.reference(truth)[output].backward(upstream.to(at::kFloat).to(at::kDouble));
    for (size_t i = 0; i < truth.size(); ++i) {
      const at::Tensor expected = truth[i].grad().defined() ? truth[i].grad() : at::zeros_like(truth[i]);
      const at::Tensor actual =
          on_device[i].grad().defined() ? on_device[i].grad() : at::zeros_like(on_device[i]);
      check_close(test.input_names[i], actual, expected, kFloatTolerance);
    }
  }
}

TEST_CASE("the convolution's kernels add to the sink, a bf16 weight's too, the same bits every time",
          "[short_conv_cuda][cuda]") {
  const PoisonedMemory poisoned;
  const int64_t N = 4097;
  const int64_t D = 384;
  const at::Tensor x = normal({N, D}, 1).to(kDevice, at::kBFloat16);
  const at::Tensor dy = normal({N, D}, 2).to(kDevice, at::kBFloat16);
  const at::Tensor weight = normal({D, 1, 4}, 3).to(kDevice, at::kBFloat16);
  const auto sequences = ops::Sequences::make({0, 1000, 1003, N}, kDevice);
  Tensors sinks;
  Tensors gradients;
  for (int run = 0; run < 3; ++run) {
    const at::Tensor input = x.clone().set_requires_grad(true);
    sinks.push_back(at::full({D, 1, 4}, 0.25, dy.options().dtype(at::kFloat)));
    ops::short_conv({.x = input, .weight = {weight, sinks.back()}, .sequences = sequences}).y.backward(dy);
    gradients.push_back(input.grad());
    CHECK(at::equal(sinks[0], sinks.back()));
    CHECK(at::equal(gradients[0], gradients.back()));
  }
  // The sums over the tokens one by one in float64.
  const at::Tensor wide = x.to(at::kDouble).set_requires_grad(true);
  const at::Tensor taps = weight.to(at::kDouble).set_requires_grad(true);
  ops::short_conv({.x = wide, .weight = {taps, {}}, .sequences = sequences}).y.backward(dy.to(at::kDouble));
  check_close("sink", sinks[0] - 0.25, taps.grad(), kFloatTolerance);
  check_close("dx", gradients[0], wide.grad(), kHalfTolerance);
}

TEST_CASE("the convolution's kernels take upstream gradients and inputs in any layout",
          "[short_conv_cuda][cuda]") {
  const int64_t N = 70;
  const int64_t D = 16;
  const auto sequences = ops::Sequences::make({0, 33, N}, kDevice);
  const at::TensorOptions options = at::TensorOptions(kDevice).dtype(at::kFloat);
  const at::Tensor weight = normal({D, 1, 4}, 1).to(kDevice, at::kFloat);
  const at::Tensor wide = normal({N, 3 * D}, 2).to(kDevice, at::kFloat);
  const Tensors layouts = {at::ones({1, 1}, options).expand({N, D}), wide.slice(1, 0, 2 * D, 2),
                           wide.narrow(1, D, D), wide.narrow(1, 3, D),
                           normal({D, N}, 3).to(kDevice, at::kFloat).t()};
  for (const at::Tensor& x : layouts)
    for (const at::Tensor& dy : layouts) {
      Tensors results[2];
      for (const bool contiguous : {false, true}) {
        const at::Tensor input = (contiguous ? x.contiguous() : x).detach().set_requires_grad(true);
        const at::Tensor sink = at::zeros_like(weight);
        const auto out = ops::short_conv({.x = input, .weight = {weight, sink}, .sequences = sequences});
        out.y.backward(contiguous ? dy.contiguous() : dy);
        results[contiguous] = {out.y, out.final_state, input.grad(), sink};
      }
      for (size_t i = 0; i < 4; ++i) CHECK(at::equal(results[0][i], results[1][i]));
    }
}

TEST_CASE("more taps and odd widths go on without the convolution's kernels", "[short_conv_cuda][cuda]") {
  check_on_device({.offsets = kPacked, .channels = 8, .taps = 7});
  check_on_device({.offsets = kPacked, .channels = 8, .taps = 1});
  check_on_device({.offsets = kPacked, .channels = 7, .parts = {2, 5}, .rest = 1});
}

TEST_CASE("the end of a sequence of more than 2^31 numbers is that of its last tokens",
          "[short_conv_cuda][cuda]") {
  const int64_t D = 4096;
  const int64_t N = (int64_t{1} << 31) / D + 65;
  const int64_t tail = 64;
  const at::TensorOptions options = at::TensorOptions(kDevice).dtype(at::kBFloat16);
  at::manual_seed(1);
  const at::Tensor x = at::randn({N, D}, options);
  const at::Tensor dy = at::randn({N, D}, options);
  const at::Tensor weight = at::randn({D, 1, 4}, options);
  const at::Tensor sink = at::zeros({D, 1, 4}, options.dtype(at::kFloat));
  const at::Tensor whole = x.set_requires_grad(true);
  const auto out = ops::short_conv(
      {.x = whole, .weight = {weight, sink}, .sequences = ops::Sequences::make({0, N}, kDevice)});
  out.y.backward(dy);
  const auto cut = [&](const at::Tensor& rows) { return rows.detach().narrow(0, N - tail, tail); };
  const at::Tensor history =
      x.detach().narrow(0, N - tail - 4, 4).t().unsqueeze(0).contiguous();  // [1, D, 4]
  const at::Tensor part = cut(x).clone().set_requires_grad(true);
  const auto expected = ops::short_conv({.x = part,
                                         .weight = {weight, at::zeros_like(sink)},
                                         .initial_state = history,
                                         .sequences = ops::Sequences::make({0, tail}, kDevice)});
  expected.y.backward(cut(dy));
  CHECK(at::equal(cut(out.y), expected.y));
  CHECK(at::equal(out.final_state, expected.final_state));
  CHECK(at::equal(cut(whole.grad()), part.grad()));
}

TEST_CASE("tiles of the convolution's backward leave enough threads", "[short_conv_cuda]") {
  CHECK(kernels::short_conv_tile(32768, 3072) == 64);
  CHECK(kernels::short_conv_tile(8192, 3072) == 32);
  CHECK(kernels::short_conv_tile(1, 4) == 32);
  CHECK(kernels::short_conv_num_partials(0, 3072) == 0);
  CHECK(kernels::short_conv_num_partials(33, 3072) == 2);
}

}  // namespace osdn::test::short_conv_cuda_test
