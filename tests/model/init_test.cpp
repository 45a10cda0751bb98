#include "model/init.h"

#include "tests/support/test.h"

namespace osdn::model {
namespace {

at::Tensor values_of(const std::string& name, int64_t seed, std::vector<int64_t> shape) {
  at::Tensor values = at::empty(shape, at::kFloat);
  initialize({.name = name, .shape = shape, .scale = 1.0}, seed, values);
  return values;
}

TEST_CASE("values depend on seed and name and on nothing else", "[init]") {
  const at::Tensor a = values_of("a", 1, {1000});
  CHECK(a.equal(values_of("a", 1, {1000})));
  CHECK(!a.equal(values_of("a", 2, {1000})));
  CHECK(!a.equal(values_of("b", 1, {1000})));
  // A longer tensor begins with the same values: element i is a function of i.
  CHECK(a.equal(values_of("a", 1, {100001}).narrow(0, 0, 1000)));
}

TEST_CASE("any number of threads gives the same values", "[init]") {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = values_of("w", 5, {100001});
  at::set_num_threads(2);
  const at::Tensor two = values_of("w", 5, {100001});
  at::set_num_threads(threads);
  CHECK(one.equal(two));
}

TEST_CASE("values are standard normal: mean, spread, tails, no correlation of neighbours", "[init]") {
  const at::Tensor x = values_of("w", 7, {1 << 20}).to(at::kDouble);
  CHECK(x.mean().item<double>() == Approx(0.0).margin(4e-3));
  CHECK(x.std().item<double>() == Approx(1.0).margin(4e-3));
  CHECK(x.pow(4).mean().item<double>() == Approx(3.0).margin(4e-2));
  CHECK(x.abs().gt(3.0).to(at::kDouble).mean().item<double>() == Approx(2.6998e-3).margin(3e-4));
  const at::Tensor neighbours = x.narrow(0, 0, (1 << 20) - 1) * x.narrow(0, 1, (1 << 20) - 1);
  CHECK(neighbours.mean().item<double>() == Approx(0.0).margin(4e-3));
}

}  // namespace
}  // namespace osdn::model
