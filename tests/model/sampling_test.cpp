#include "model/sampling.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "tests/support/test.h"

namespace osdn::model {
namespace sampling_test {

const std::vector<float> kLogits = {2.0f, 1.0f, 0.0f, -1.0f};

int32_t draw(const SamplingOptions& options, int64_t position, const std::vector<float>& logits = kLogits,
             const std::vector<int32_t>& present = {}, uint64_t key = 1) {
  return sample_token(logits.data(), static_cast<int64_t>(logits.size()), options, present, key, position);
}

std::vector<double> shares(const SamplingOptions& options, int64_t num_draws = 20000) {
  std::vector<double> share(kLogits.size());
  for (int64_t i = 0; i < num_draws; ++i)
    share[static_cast<size_t>(draw(options, i))] += 1.0 / static_cast<double>(num_draws);
  return share;
}

TEST_CASE("draws follow the softmax of the logits over the temperature", "[sampling]") {
  const at::Tensor logits = at::tensor(kLogits);
  for (const double temperature : {0.5, 1.0, 3.0}) {
    const at::Tensor expected = (logits / temperature).softmax(0);
    const std::vector<double> found = shares({.temperature = temperature});
    // Three standard deviations of 20,000 draws are 0.0106 at most.
    for (int64_t i = 0; i < 4; ++i)
      CHECK(found[static_cast<size_t>(i)] == Approx(expected[i].item<double>()).margin(0.0106));
  }
}

TEST_CASE("top-k and top-p keep the likeliest tokens and their proportions", "[sampling]") {
  const std::vector<double> two = shares({.top_k = 2});
  CHECK(two[2] + two[3] == 0);
  CHECK(two[1] == Approx(1 / (1 + std::exp(1.0))).margin(0.0106));
  CHECK(shares({.top_k = 9})[3] > 0.01);  // more than there are: all
  // Probabilities 0.644, 0.237, 0.087, 0.032.
  CHECK(shares({.top_p = 0.64}, 1000)[0] == Approx(1.0));
  const std::vector<double> nucleus = shares({.top_p = 0.65});
  CHECK(nucleus[2] + nucleus[3] == 0);
  CHECK(nucleus[1] == Approx(1 / (1 + std::exp(1.0))).margin(0.0106));
  CHECK(shares({.top_p = 1e-9}, 100)[0] == Approx(1.0));
  // Of the two that top-k keeps, the first alone has 0.73.
  CHECK(shares({.top_k = 2, .top_p = 0.7}, 1000)[0] == Approx(1.0));
}

TEST_CASE("a nucleus of many tokens is the same as by sorting all of them", "[sampling]") {
  at::manual_seed(3);
  const at::Tensor logits = at::randn({1000});
  const std::vector<float> values(logits.data_ptr<float>(), logits.data_ptr<float>() + 1000);
  const auto [p, order] = logits.to(at::kDouble).softmax(0).sort(0, /*descending=*/true);
  const at::Tensor before = p.cumsum(0) - p;
  std::vector<bool> kept(1000);
  for (int64_t i = 0; i < 1000; ++i) kept[order[i].item<int64_t>()] = before[i].item<double>() < 0.8;
  std::vector<bool> drawn(1000);
  for (int64_t i = 0; i < 4000; ++i) drawn[draw({.top_p = 0.8}, i, values)] = true;
  int64_t outside = 0;
  int64_t inside = 0;
  for (size_t i = 0; i < 1000; ++i) {
    if (drawn[i] && !kept[i]) ++outside;
    if (drawn[i] && kept[i]) ++inside;
  }
  CHECK(outside == 0);
  CHECK(inside > 200);
}

TEST_CASE("temperature 0 takes the likeliest token, of equal ones the lowest id", "[sampling]") {
  CHECK(draw({.temperature = 0}, 0) == 0);
  CHECK(draw({.temperature = 0}, 0, {1.0f, 3.0f, 3.0f}) == 1);
  CHECK(draw({.temperature = 0, .repetition_penalty = 3.0}, 0, kLogits, {0}) == 1);
  CHECK(draw({.temperature = 0, .repetition_penalty = 3.0}, 0, {-1.0f, -2.0f}, {0, 0, 0}) == 1);
}

TEST_CASE("ids of the padding and forbidden ids are never chosen, however likely", "[sampling]") {
  // Real tokens far below the padding's 0, as after a head whose rows are padded with zeros.
  std::vector<float> logits(512, 0.0f);
  for (size_t i = 0; i < 400; ++i) logits[i] = -50.0f - static_cast<float>(i % 7);
  CHECK(draw({.temperature = 0, .num_ids = 400}, 0, logits) == 0);
  CHECK(draw({.temperature = 0, .num_ids = 400, .never = {0}}, 0, logits) == 7);
  CHECK(draw({.temperature = 0}, 0, logits) >= 400);  // what the option prevents
  for (const SamplingOptions& options : {SamplingOptions{.temperature = 2, .num_ids = 400, .never = {3}},
                                         {.temperature = 2, .top_k = 500, .num_ids = 400, .never = {3}},
                                         {.temperature = 2, .top_p = 0.99, .num_ids = 400, .never = {3}}})
    for (int64_t i = 0; i < 10000; ++i) {
      const int32_t token = draw(options, i, logits);
      if (token < 0 || token >= 400 || token == 3) FAIL("drew id " << token);
    }
}

TEST_CASE("a draw depends on its key and position alone", "[sampling]") {
  int64_t different = 0;
  for (int64_t position = 0; position < 200; ++position) {
    CHECK(draw({}, position, kLogits, {}, 9) == draw({}, position, kLogits, {}, 9));
    if (draw({}, position, kLogits, {}, 9) != draw({}, position, kLogits, {}, 10)) ++different;
  }
  CHECK(different > 50);
}

TEST_CASE("logits that are no numbers and options out of range are refused by name", "[sampling]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK_THROWS_AS(draw({}, 0, {1.0f, nan, 2.0f}), DataError);
  CHECK_THROWS_AS(draw({}, 0, {-infinity, -infinity}), DataError);
  CHECK_THROWS_AS(draw({.never = {0, 1}}, 0, {1.0f, 2.0f}), DataError);
  CHECK(draw({}, 0, {-infinity, 1.0f}) == 1);
  CHECK_THROWS_AS(check_sampling({.temperature = -1}), UserError);
  CHECK_THROWS_AS(check_sampling({.temperature = nan}), UserError);
  CHECK_THROWS_AS(check_sampling({.top_k = -1}), UserError);
  CHECK_THROWS_AS(check_sampling({.top_p = 0}), UserError);
  CHECK_THROWS_AS(check_sampling({.top_p = 1.5}), UserError);
  CHECK_THROWS_AS(check_sampling({.repetition_penalty = 0}), UserError);
}

}  // namespace sampling_test
}  // namespace osdn::model
