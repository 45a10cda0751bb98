#include "tensor/weight.h"

#include "base/error.h"
#include "tests/support/op_check.h"

namespace osdn::test::weight_test {

TEST_CASE("joined weights see and write the memory of their parts", "[weight]") {
  const at::Tensor values = normal({7, 4}, 1, at::kFloat);
  const at::Tensor sinks = at::zeros({7, 4});
  const std::vector<Weight> parts = {{values.narrow(0, 0, 3), sinks.narrow(0, 0, 3)},
                                     {values.narrow(0, 3, 4), sinks.narrow(0, 3, 4)}};
  const Weight joined = join(parts);
  CHECK(at::equal(joined.value, values));
  joined.sink.add_(1);
  CHECK(at::equal(sinks, at::ones({7, 4})));
  CHECK_FALSE(join({{values.narrow(0, 0, 3), {}}, {values.narrow(0, 3, 4), {}}}).sink.defined());
}

TEST_CASE("weights that are not adjacent are not joined", "[weight]") {
  CHECK_THROWS_AS(join({{at::zeros({2, 3}), {}}, {at::zeros({2, 3}), {}}}), InternalError);
  const at::Tensor values = at::zeros({4, 3});
  CHECK_THROWS_AS(join({{values.narrow(0, 2, 2), {}}, {values.narrow(0, 0, 2), {}}}), InternalError);
  CHECK_THROWS_AS(join({{values.narrow(0, 0, 2), at::zeros({2, 3})}, {values.narrow(0, 2, 2), {}}}),
                  InternalError);
}

TEST_CASE("a specification counts its elements", "[weight]") {
  CHECK(ParameterSpec{.name = "w", .shape = {3, 1, 4}}.num_elements() == 12);
  CHECK(ParameterSpec{.name = "scalar", .shape = {}}.num_elements() == 1);
}

}  // namespace osdn::test::weight_test
