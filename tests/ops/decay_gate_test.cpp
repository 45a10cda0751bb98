#include "ops/decay_gate.h"

#include "base/error.h"
#include "ops/detail/decay_gate_paths.h"
#include "tests/support/op_check.h"

namespace osdn::test::decay_gate_test {

// A few float32 roundings of logarithms and exponentials.
constexpr double kFloatTolerance = 2e-6;
// One rounding to the 8 bits of bf16.
constexpr double kHalfTolerance = 4e-3;

OpCase make_case(int64_t tokens, int64_t heads, int64_t channels, std::optional<double> lower_bound,
                 bool rounded = false) {
  OpCase test;
  test.name = lower_bound ? "decay_gate bounded" : "decay_gate";
  test.input_names = {"a", "log_rate", "bias"};
  test.weights = {1, 2};
  const at::Tensor a = 2 * normal({tokens, heads, std::max<int64_t>(channels, 1)}, 1);
  test.inputs = {channels > 0 ? a : a.squeeze(2), normal({heads}, 2),
                 normal({heads * std::max<int64_t>(channels, 1)}, 3) - 1};
  test.op = [lower_bound, rounded](const Tensors& i, const Tensors& sinks) {
    return Tensors{ops::decay_gate({.a = i[0],
                                    .log_rate = {i[1], sinks[1]},
                                    .bias = {i[2], sinks[2]},
                                    .lower_bound = lower_bound,
                                    .rounded = rounded})};
  };
  test.reference = [lower_bound](const Tensors& i) {
    return Tensors{ops::decay_gate_ref(i[0], i[1], i[2], lower_bound)};
  };
  return test;
}

TEST_CASE("decay_gate and its gradients equal the reference and finite differences", "[decay_gate]") {
  for (const std::optional<double> bound : {std::optional<double>(), std::optional<double>(-5)})
    for (const int64_t channels : {0, 4}) {
      check_against_reference(make_case(5, 3, channels, bound), at::kDouble, at::kCPU, 1e-13);
      for (const bool rounded : {false, true})
        check_against_reference(make_case(65, 3, channels, bound, rounded), at::kBFloat16, at::kCPU,
                                kHalfTolerance);
      check_finite_differences(make_case(3, 2, channels, bound));
      check_sinks(make_case(7, 3, channels, bound), at::kFloat, at::kCPU, kFloatTolerance);
      for (const int64_t tokens : {1, 63, 64, 65, 1000})
        check_against_reference(make_case(tokens, 3, channels, bound), at::kFloat, at::kCPU, kFloatTolerance);
    }
}

TEST_CASE("decay_gate in the dtype of its input is the wide one rounded once, and so are its gradients",
          "[decay_gate]") {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble})
    for (const std::optional<double> bound : {std::optional<double>(), std::optional<double>(-5)}) {
      const at::ScalarType wide_type = accumulation_type(type);
      const at::Tensor dg = normal({65, 3, 4}, 4, type);
      Tensors results[2];
      for (const bool rounded : {false, true}) {
        const at::Tensor a = (2 * normal({65, 3, 4}, 1)).to(type).requires_grad_();
        const at::Tensor rate = normal({3}, 2, wide_type).requires_grad_();
        const at::Tensor bias = normal({12}, 3, wide_type).requires_grad_();
        const at::Tensor g = ops::decay_gate(
            {.a = a, .log_rate = {rate, {}}, .bias = {bias, {}}, .lower_bound = bound, .rounded = rounded});
        CHECK(g.scalar_type() == (rounded ? type : wide_type));
        g.backward(dg.to(g.scalar_type()));
        results[rounded] = {g.detach().to(type), a.grad(), rate.grad(), bias.grad()};
      }
      for (size_t i = 0; i < 4; ++i) CHECK(at::equal(results[0][i], results[1][i]));
    }
}

TEST_CASE("decay_gate's loops and its ATen form agree", "[decay_gate]") {
  namespace paths = ops::decay_gate_detail;
  const at::Tensor dg = normal({19, 3, 5}, 2);
  for (const std::optional<double> bound : {std::optional<double>(), std::optional<double>(-5)}) {
    const paths::Inputs in{
        .y = 5 * normal({19, 3, 5}, 1), .rate = normal({3}, 3).exp(), .lower_bound = bound};
    check_close("g", paths::forward_aten(in), paths::forward_cpu(in), 1e-13);
    check_close("dy", paths::backward_aten(in, dg).dy, paths::backward_cpu(in, dg).dy, 1e-13);
    check_close("drate", paths::backward_aten(in, dg).drate, paths::backward_cpu(in, dg).drate, 1e-13);
  }
}

TEST_CASE("decay_gate gives a token the same bits wherever it stands among others", "[decay_gate]") {
  const at::Tensor a = normal({37, 3}, 1, at::kFloat);
  const Weight rate{normal({3}, 2, at::kFloat), {}};
  const Weight bias{normal({3}, 3, at::kFloat), {}};
  const at::Tensor all = ops::decay_gate({.a = a, .log_rate = rate, .bias = bias});
  for (int64_t t = 0; t < 37; ++t)
    CHECK(at::equal(ops::decay_gate({.a = a.narrow(0, t, 1), .log_rate = rate, .bias = bias}),
                    all.narrow(0, t, 1)));
}

TEST_CASE("decay_gate takes strided inputs and upstream gradients in any layout", "[decay_gate]") {
  check_upstream_layouts(make_case(6, 4, 0, std::nullopt));
  const at::Tensor wide = normal({5, 12}, 4);
  const Weight rate{normal({3}, 5), {}};
  const Weight bias{normal({3}, 6), {}};
  const at::Tensor strided = wide.slice(1, 1, 7, 2);
  CHECK(at::equal(ops::decay_gate({.a = strided, .log_rate = rate, .bias = bias}),
                  ops::decay_gate({.a = strided.contiguous(), .log_rate = rate, .bias = bias})));
}

TEST_CASE("decay_gate has the same bits with any number of threads", "[decay_gate]") {
  check_thread_invariance(make_case(700, 4, 16, std::nullopt));
  check_thread_invariance(make_case(700, 4, 16, -5.0));
}

TEST_CASE("decay_gate is a decay in fp32 for every input, however large", "[decay_gate]") {
  const at::Tensor a =
      at::tensor({-1e4, -90.0, -20.0, 0.0, 19.0, 21.0, 90.0, 1e4}).to(at::kFloat).view({8, 1});
  const Weight rate{at::tensor({std::log(7.3)}).to(at::kFloat), {}};
  const Weight bias{at::zeros({1}, at::kFloat), {}};
  for (const std::optional<double> bound : {std::optional<double>(), std::optional<double>(-5)}) {
    const at::Tensor x = a.clone().set_requires_grad(true);
    const at::Tensor g =
        ops::decay_gate({.a = x.to(at::kBFloat16), .log_rate = rate, .bias = bias, .lower_bound = bound});
    CHECK(g.scalar_type() == at::kFloat);
    CHECK(at::isfinite(g).all().item<bool>());
    CHECK((g <= 0).all().item<bool>());
    if (bound) CHECK((g >= *bound).all().item<bool>());
    g.sum().backward();
    CHECK(at::isfinite(x.grad()).all().item<bool>());
  }
  // Above 20 the softplus is its argument.
  const at::Tensor g = ops::decay_gate({.a = a, .log_rate = rate, .bias = bias});
  CHECK(g[5].item<double>() == Approx(-7.3 * 21).epsilon(1e-6));
  CHECK(ops::decay_gate({.a = at::zeros({0, 1}), .log_rate = rate, .bias = bias}).sizes() ==
        at::IntArrayRef({0, 1}));
}

TEST_CASE("decay_gate refuses shapes that do not fit and a bound that is none", "[decay_gate]") {
  const auto message = [](const at::Tensor& a, int64_t rates, int64_t biases, std::optional<double> bound) {
    return message_of<UserError>([&] {
      ops::decay_gate({.a = a,
                       .log_rate = {at::zeros({rates}), {}},
                       .bias = {at::zeros({biases}), {}},
                       .lower_bound = bound});
    });
  };
  CHECK(contains(message(at::zeros({2}), 2, 2, {}), "decay_gate: a: expected"));
  CHECK(contains(message(at::zeros({2, 3}), 2, 3, {}), "decay_gate: log_rate"));
  CHECK(contains(message(at::zeros({2, 3, 4}), 3, 3, {}), "decay_gate: bias"));
  CHECK(contains(message(at::zeros({2, 3}), 3, 3, 0.0), "lower_bound: expected a number below 0"));
}

TEST_CASE("decay_gate on CUDA equals the reference", "[decay_gate][cuda]") {
  REQUIRE(at::hasCUDA());
  for (const std::optional<double> bound : {std::optional<double>(), std::optional<double>(-5)})
    for (const int64_t channels : {0, 32}) {
      check_against_reference(make_case(65, 3, channels, bound), at::kFloat, at::kCUDA, kFloatTolerance);
      for (const bool rounded : {false, true})
        check_against_reference(make_case(65, 3, channels, bound, rounded), at::kBFloat16, at::kCUDA,
                                kHalfTolerance);
    }
}

}  // namespace osdn::test::decay_gate_test
