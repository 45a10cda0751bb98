#include "optim/schedule.h"

#include "tests/support/test.h"

namespace osdn::optim {
namespace {

config::Optimizer optimizer(config::Schedule schedule) {
  config::Optimizer made;
  made.learning_rate = 2.0;
  made.warmup_steps = 10;
  made.final_ratio = 0.1;
  made.schedule = schedule;
  return made;
}

TEST_CASE("warm-up is linear from the first step and reaches the peak at its end", "[schedule]") {
  for (const auto schedule : {config::Schedule::kCosine, config::Schedule::kLinear,
                              config::Schedule::kWarmupStableDecay, config::Schedule::kConstant}) {
    CHECK(learning_rate(optimizer(schedule), 100, 1) == Approx(0.2));
    CHECK(learning_rate(optimizer(schedule), 100, 10) == Approx(2.0));
  }
}

TEST_CASE("cosine and linear pass half way and end at the final ratio", "[schedule]") {
  CHECK(learning_rate(optimizer(config::Schedule::kCosine), 110, 60) == Approx(2.0 * 0.55));
  CHECK(learning_rate(optimizer(config::Schedule::kCosine), 110, 110) == Approx(0.2));
  CHECK(learning_rate(optimizer(config::Schedule::kLinear), 110, 60) == Approx(2.0 * 0.55));
  CHECK(learning_rate(optimizer(config::Schedule::kLinear), 110, 110) == Approx(0.2));
}

TEST_CASE("warm-up, stable, decay holds the peak until its last share", "[schedule]") {
  const config::Optimizer wsd = optimizer(config::Schedule::kWarmupStableDecay);  // decay_fraction 0.2
  CHECK(learning_rate(wsd, 100, 80) == Approx(2.0));
  CHECK(learning_rate(wsd, 100, 90) == Approx(2.0 * 0.55));
  CHECK(learning_rate(wsd, 100, 100) == Approx(0.2));
}

TEST_CASE("constant stays, and no warm-up starts at the peak", "[schedule]") {
  config::Optimizer constant = optimizer(config::Schedule::kConstant);
  CHECK(learning_rate(constant, 100, 100) == Approx(2.0));
  constant.warmup_steps = 0;
  CHECK(learning_rate(constant, 100, 1) == Approx(2.0));
}

}  // namespace
}  // namespace osdn::optim
