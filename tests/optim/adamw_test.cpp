#include "optim/adamw.h"

#include "tests/support/test.h"

namespace osdn::optim {
namespace {

std::vector<ParameterSpec> two_groups() {
  return {{.name = "matrix", .shape = {7, 11}, .decay = true, .group = 0},
          {.name = "norm", .shape = {13}, .decay = false, .group = 1}};
}

/// AdamW of one parameter in float64 (eq. 1-4).
void reference_step(at::Tensor& w, at::Tensor& m, at::Tensor& v, const at::Tensor& g, double lr, double decay,
                    int64_t t) {
  const AdamWOptions options;
  m = options.beta1 * m + (1 - options.beta1) * g;
  v = options.beta2 * v + (1 - options.beta2) * g * g;
  const at::Tensor m_hat = m / (1 - std::pow(options.beta1, t));
  const at::Tensor v_hat = v / (1 - std::pow(options.beta2, t));
  w = w * (1 - lr * decay) - lr * m_hat / (v_hat.sqrt() + options.eps);
}

void check_against_reference(at::Device device) {
  at::manual_seed(1);
  ParameterArena arena(two_groups(), {.device = device});
  for (const char* name : {"matrix", "norm"}) {
    at::Tensor master = arena.master(name);
    master.copy_(at::randn(master.sizes()));
    at::Tensor w = master.to(at::kCPU, at::kDouble).clone();
    at::Tensor m = at::zeros_like(w);
    at::Tensor v = at::zeros_like(w);
    for (int64_t t = 1; t <= 5; ++t) {
      arena.zero_gradients();
      const at::Tensor g = at::randn(w.sizes(), at::kDouble);
      arena.gradient(name).copy_(g);
      adamw_step(arena, {}, 1e-2, t, 0.5);
      reference_step(w, m, v, 0.5 * g, 1e-2, std::string(name) == "matrix" ? 0.1 : 0.0, t);
    }
    test::check_close(name, arena.master(name), w, 1e-6);
    test::check_close(std::string(name) + " exp_avg", arena.exp_avg(name), m, 1e-6);
    test::check_close(std::string(name) + " exp_avg_sq", arena.exp_avg_sq(name), v, 1e-6);
    // The other parameter starts afresh.
    arena = ParameterArena(two_groups(), {.device = device});
  }
}

TEST_CASE("adamw_step equals AdamW in float64 over five updates", "[adamw]") {
  check_against_reference(at::kCPU);
}

TEST_CASE("adamw_step on the GPU equals AdamW in float64 over five updates", "[adamw][cuda]") {
  check_against_reference(at::kCUDA);
}

TEST_CASE("with zero gradients only decayed parameters change, by 1 - lr * decay", "[adamw]") {
  ParameterArena arena(two_groups(), {});
  arena.master("matrix").fill_(1.0);
  arena.master("norm").fill_(1.0);
  adamw_step(arena, {.weight_decay = 0.1}, 0.1, 1, 1.0);
  CHECK(arena.master("matrix").eq(0.99f).all().item<bool>());
  CHECK(arena.master("norm").eq(1.0f).all().item<bool>());
}

TEST_CASE("decay_all decays norms too, but never what is not trained", "[adamw]") {
  std::vector<ParameterSpec> specs = two_groups();
  specs.push_back({.name = "frozen", .shape = {5}, .decay = false, .trainable = false, .group = 2});
  ParameterArena arena(specs, {.decay_all = true});
  for (const char* name : {"matrix", "norm", "frozen"}) arena.master(name).fill_(1.0);
  adamw_step(arena, {.weight_decay = 0.1}, 0.1, 1, 1.0);
  CHECK(arena.master("norm").eq(0.99f).all().item<bool>());
  CHECK(arena.master("frozen").eq(1.0f).all().item<bool>());
}

TEST_CASE("the bf16 copy follows the masters and the master keeps small updates", "[adamw]") {
  ParameterArena arena(two_groups(), {.compute = at::kBFloat16});
  arena.master("matrix").fill_(1.0);
  arena.refresh_compute_copy();
  for (int64_t t = 1; t <= 20; ++t) {
    arena.gradient("matrix").fill_(1.0);
    adamw_step(arena, {.weight_decay = 0.0}, 1e-4, t, 1.0);
  }
  // Each update of 1e-4 is far below bf16's spacing at 1, their sum of 2e-3 still below half of it (3.9e-3).
  CHECK(arena.master("matrix").lt(0.9985f).all().item<bool>());
  CHECK(arena.weight("matrix").value.eq(arena.master("matrix").to(at::kBFloat16)).all().item<bool>());
}

TEST_CASE("any number of threads gives the same bits", "[adamw]") {
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (const int count : {1, 2}) {
    at::set_num_threads(count);
    at::manual_seed(3);
    ParameterArena arena({{.name = "w", .shape = {300, 333}}}, {});
    arena.masters().copy_(at::randn({arena.masters().numel()}));
    arena.gradients().copy_(at::randn({arena.masters().numel()}));
    adamw_step(arena, {}, 1e-3, 1, 1.0);
    results.push_back(arena.masters().clone());
  }
  at::set_num_threads(threads);
  CHECK(results[0].equal(results[1]));
}

}  // namespace
}  // namespace osdn::optim
