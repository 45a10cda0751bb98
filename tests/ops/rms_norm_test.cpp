#include "ops/rms_norm.h"

#include "base/error.h"
#include "ops/detail/rms_norm_paths.h"
#include "tests/ops/rms_norm_cases.h"

namespace osdn::test::rms_norm_test {

TEST_CASE("the norms and their gradients equal the reference and finite differences", "[rms_norm]") {
  for (const OpCase& test : all_cases(4, 7)) {
    check_against_reference(test, at::kDouble, at::kCPU, 1e-13);
    check_finite_differences(test);
  }
}

TEST_CASE("the norms work at every number of rows and in float32 and bf16", "[rms_norm]") {
  for (const int64_t rows : {1, 63, 64, 65, 1000})
    for (const OpCase& test : all_cases(rows, 48)) {
      check_against_reference(test, at::kFloat, at::kCPU, kFloatTolerance);
      check_against_reference(test, at::kBFloat16, at::kCPU, kHalfTolerance);
    }
}

TEST_CASE("the norms add their weight gradient to the sink at every backward", "[rms_norm]") {
  for (const OpCase& test : all_cases(300, 20)) {
    check_sinks(test, at::kDouble, at::kCPU, 1e-13);
    check_sinks(test, at::kFloat, at::kCPU, kFloatTolerance);
  }
}

TEST_CASE("the norms take upstream gradients in any layout", "[rms_norm]") {
  for (const OpCase& test : all_cases(6, 5)) check_upstream_layouts(test);
}

TEST_CASE("the norms have the same bits with any number of threads", "[rms_norm]") {
  for (const OpCase& test : all_cases(1025, 40)) check_thread_invariance(test);
}

TEST_CASE("the norms' loops and their ATen form agree", "[rms_norm]") {
  namespace paths = ops::rms_norm_detail;
  for (const bool gated : {false, true})
    for (const bool added : {false, true}) {
      paths::Inputs in{
          .x = normal({9, 21}, 1), .residual = {}, .gate = {}, .weight = normal({21}, 2), .eps = kEps};
      if (gated) in.gate = normal({9, 21}, 3);
      const at::Tensor dy = normal({9, 21}, 5);
      const at::Tensor dsum = added ? normal({9, 21}, 6) : at::Tensor();
      const auto forward = paths::forward_cpu(in);
      check_close("y", paths::forward_aten(in).y, forward.y, 1e-14);
      const auto loops = paths::backward_cpu(in, forward.rstd, dy, dsum);
      const auto aten = paths::backward_aten(in, forward.rstd, dy, dsum);
      check_close("dx", aten.dx, loops.dx, 1e-13);
      check_close("dweight", aten.dweight, loops.dweight, 1e-13);
      if (gated) check_close("dgate", aten.dgate, loops.dgate, 1e-13);
    }
}

TEST_CASE("the residual norm reads the sum before it is rounded", "[rms_norm]") {
  // 256 + 0.5 is 256 in bf16. The weight puts the two possible results on either side of 22.5625, where bf16
  // rounds to 22.5 below and to 22.625 above.
  const double of_exact = 1 / std::sqrt((256.5 * 256.5 + 1) / 2);
  const double of_rounded = 1 / std::sqrt((256.0 * 256.0 + 1) / 2);
  const double factor = 22.5625 / std::sqrt(of_exact * of_rounded);
  const at::Tensor branch = at::tensor({0.5, 1.0}).to(at::kBFloat16).view({1, 2});
  const at::Tensor residual = at::tensor({256.0, 0.0}).to(at::kBFloat16).view({1, 2});
  const Weight weight{at::tensor({1.0, factor}).to(at::kFloat), {}};
  const auto out = ops::add_rms_norm(branch, residual, weight, 0);
  CHECK(out.sum[0][0].item<float>() == 256.0f);
  CHECK(out.normalized[0][1].item<double>() == 22.5);
}

TEST_CASE("an fp32 weight serves bf16 activations and keeps an fp32 gradient", "[rms_norm]") {
  const at::Tensor x = normal({40, 16}, 1).to(at::kBFloat16);
  const at::Tensor weight = normal({16}, 2, at::kFloat);
  const at::Tensor sink = at::zeros({16});
  const at::Tensor y = ops::rms_norm(x, {weight, sink}, kEps);
  CHECK(y.scalar_type() == at::kBFloat16);
  const at::Tensor dy = normal({40, 16}, 3).to(at::kBFloat16);
  y.backward(dy);
  const at::Tensor w64 = weight.to(at::kDouble).set_requires_grad(true);
  ops::rms_norm_ref(x.to(at::kDouble), w64, kEps).backward(dy.to(at::kDouble));
  check_close("sink", sink, w64.grad(), kFloatTolerance);
}

TEST_CASE("a zero row passes through the norms with finite gradients", "[rms_norm]") {
  for (const OpCase& test : all_cases(3, 6)) {
    Tensors inputs = leaves(test.inputs, at::kFloat, at::kCPU);
    for (size_t i = 0; i + 1 < inputs.size(); ++i)
      inputs[i] = at::zeros_like(inputs[i]).set_requires_grad(true);
    const Tensors outputs = test.op(inputs, Tensors(inputs.size()));
    weighted_sum(outputs, at::kFloat).backward();
    CHECK(outputs[0].abs().max().item<float>() == 0);
    for (const at::Tensor& input : inputs) CHECK(at::isfinite(input.grad()).all().item<bool>());
  }
}

TEST_CASE("the norms accept no rows and leading dimensions", "[rms_norm]") {
  const Weight weight{at::ones({4}), {}};
  CHECK(ops::rms_norm(at::zeros({0, 4}), weight, kEps).sizes() == at::IntArrayRef({0, 4}));
  const at::Tensor x = normal({3, 2, 4}, 1, at::kFloat);
  const at::Tensor y = ops::rms_norm(x, weight, kEps);
  CHECK(at::equal(y.view({6, 4}), ops::rms_norm(x.view({6, 4}), weight, kEps)));
  CHECK(at::equal(ops::rms_norm(x.transpose(0, 1), weight, kEps), y.transpose(0, 1)));
}

TEST_CASE("the residual norm backpropagates from one output alone", "[rms_norm]") {
  for (const bool use_sum : {true, false}) {
    const Tensors inputs = leaves(add_case(4, 5).inputs, at::kDouble, at::kCPU);
    const auto out = ops::add_rms_norm(inputs[0], inputs[1], {inputs[2], {}}, kEps);
    (use_sum ? out.sum : out.normalized).sum().backward();
    const Tensors expected = leaves(add_case(4, 5).inputs, at::kDouble, at::kCPU);
    const auto reference = ops::add_rms_norm_ref(expected[0], expected[1], expected[2], kEps);
    (use_sum ? reference.sum : reference.normalized).sum().backward();
    check_close("branch", inputs[0].grad(), expected[0].grad(), 1e-13);
    check_close("residual", inputs[1].grad(), expected[1].grad(), 1e-13);
  }
}

TEST_CASE("the norms name what does not fit", "[rms_norm]") {
  const at::Tensor x = at::zeros({2, 4});
  const Weight weight{at::ones({4}), {}};
  CHECK(contains(message_of<UserError>([&] {
                   ops::rms_norm(x, {at::ones({5}), {}}, kEps);
                 }),
                 "rms_norm: weight: expected shape [4], got [5]"));
  CHECK(contains(message_of<UserError>([&] {
                   ops::add_rms_norm(x, at::zeros({4, 2}), weight, kEps);
                 }),
                 "add_rms_norm: residual: expected the shape"));
}

TEST_CASE("carrying the stream gives the bits of adding first and normalising then", "[rms_norm]") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensors inputs = leaves({normal({9, 24}, 1), normal({9, 24}, 2), normal({24}, 3)}, type, at::kCPU);
    const Tensors apart = leaves(inputs, type, at::kCPU);
    const auto fused = ops::carry_rms_norm(inputs[0], inputs[1], {inputs[2], {}}, kEps);
    const at::Tensor sum = apart[0] + apart[1];
    const at::Tensor normalized = ops::rms_norm(sum, {apart[2], {}}, kEps);
    CHECK(at::equal(fused.sum, sum));
    CHECK(at::equal(fused.normalized, normalized));
    const at::Tensor upstream = normal({9, 24}, 4).to(type);
    torch::autograd::backward({fused.sum, fused.normalized}, {upstream, upstream});
    torch::autograd::backward({sum, normalized}, {upstream, upstream});
    if (type != at::kFloat) continue;  // bf16 gradients are added up in fp32 by the one, in bf16 by autograd
    for (size_t i = 0; i < 3; ++i) CHECK(at::equal(inputs[i].grad(), apart[i].grad()));
  }
}

TEST_CASE("the norms on CUDA equal the reference", "[rms_norm][cuda]") {
  REQUIRE(at::hasCUDA());
  for (const OpCase& test : all_cases(65, 48)) {
    check_against_reference(test, at::kFloat, at::kCUDA, kFloatTolerance);
    check_against_reference(test, at::kBFloat16, at::kCUDA, kHalfTolerance);
    check_sinks(test, at::kFloat, at::kCUDA, kFloatTolerance);
  }
}

}  // namespace osdn::test::rms_norm_test
