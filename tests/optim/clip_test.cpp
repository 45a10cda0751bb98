#include "optim/clip.h"

#include "tests/support/test.h"

namespace osdn::optim {
namespace {

ParameterArena arena_of(int64_t elements) { return ParameterArena({{.name = "w", .shape = {elements}}}, {}); }

TEST_CASE("the norm equals the float64 norm and is the same with any number of threads", "[clip]") {
  at::manual_seed(2);
  ParameterArena arena = arena_of(100003);
  arena.gradient("w").copy_(at::randn({100003}));
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double one = gradient_norm(arena);
  at::set_num_threads(2);
  const double two = gradient_norm(arena);
  at::set_num_threads(threads);
  CHECK(one == two);
  CHECK(one == Approx(arena.gradient("w").to(at::kDouble).norm().item<double>()).epsilon(1e-12));
}

TEST_CASE("values whose squares overflow fp32 still have a finite norm", "[clip]") {
  ParameterArena arena = arena_of(4);
  arena.gradient("w").fill_(1e30);
  CHECK(gradient_norm(arena) == Approx(2e30).epsilon(1e-6));
}

TEST_CASE("the factor brings a long gradient to the limit and leaves a short one alone", "[clip]") {
  CHECK(clip_factor(4.0, 1.0) == 0.25);
  CHECK(clip_factor(0.5, 1.0) == 1.0);
  CHECK(clip_factor(4.0, 0.0) == 1.0);
}

TEST_CASE("a norm is usable when its square fits fp32, so 1e30 is clipped or skipped but never applied",
          "[clip]") {
  CHECK(is_usable_norm(1e30 * clip_factor(1e30, 1.0)));
  CHECK(is_usable_norm(0));
  for (const double norm : {1e30, HUGE_VAL, std::nan("")}) {
    CHECK_FALSE(is_usable_norm(norm * clip_factor(norm, 0)));
  }
  CHECK_FALSE(is_usable_norm(HUGE_VAL * clip_factor(HUGE_VAL, 1.0)));
}

TEST_CASE("a NaN or infinity is found by its parameter", "[clip]") {
  ParameterArena arena(
      {{.name = "first", .shape = {3}, .group = 0}, {.name = "second", .shape = {3}, .group = 1}}, {});
  CHECK(first_nonfinite(arena) == 2);
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    arena.zero_gradients();
    arena.gradient("first")[1] = bad;
    CHECK(arena.slots()[static_cast<size_t>(first_nonfinite(arena))].spec.name == "first");
    CHECK(!std::isfinite(gradient_norm(arena)));
  }
}

TEST_CASE("the norm on the GPU equals float64, the same bits every time", "[clip][cuda]") {
  for (const int64_t size : {4, 1000, 70000, 9000001}) {
    ParameterArena arena({{.name = "w", .shape = {size}, .group = 0}}, {.device = at::Device(at::kCUDA, 0)});
    arena.gradient("w").normal_();
    const double norm = gradient_norm(arena);
    CHECK(norm == Approx(arena.gradient("w").to(at::kDouble).norm().item<double>()).epsilon(1e-12));
    CHECK(gradient_norm(arena) == norm);
    arena.gradient("w")[size - 1] = 1e30;
    CHECK(gradient_norm(arena) == Approx(1e30).epsilon(1e-6));
  }
}

}  // namespace
}  // namespace osdn::optim
