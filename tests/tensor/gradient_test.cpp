#include "tensor/gradient.h"

#include "base/error.h"
#include "tests/support/op_check.h"

namespace osdn::test::gradient_test {

TEST_CASE("a gradient goes to the sink when there is one, else back in the value's dtype", "[gradient]") {
  const at::Tensor gradient = normal({3, 4}, 1, at::kFloat);
  const at::Tensor sink = at::ones({3, 4});
  CHECK_FALSE(deliver_gradient(sink, gradient, at::kBFloat16).defined());
  CHECK(at::equal(sink, 1 + gradient));
  const at::Tensor returned = deliver_gradient({}, gradient, at::kBFloat16);
  CHECK(returned.scalar_type() == at::kBFloat16);
  CHECK(at::equal(returned, gradient.to(at::kBFloat16)));
}

TEST_CASE("a row sum equals the float64 sum, with the same bits for any number of threads", "[gradient]") {
  for (const int64_t rows : {0, 1, 255, 256, 257, 1000}) {
    const at::Tensor x = normal({rows, 33}, 2, at::kFloat);
    const at::Tensor expected = x.to(at::kDouble).sum(0);
    check_close("sum", sum_rows(x), expected, 1e-6);  // float32 sums of up to 1000 terms
    const int before = at::get_num_threads();
    at::set_num_threads(1);
    const at::Tensor one = sum_rows(x);
    at::set_num_threads(3);
    CHECK(at::equal(one, sum_rows(x)));
    at::set_num_threads(before);
  }
  CHECK(sum_rows(at::zeros({4, 2}, at::kBFloat16)).scalar_type() == at::kFloat);
  const at::Tensor strided = normal({6, 10}, 3).t();
  check_close("strided", sum_rows(strided), strided.sum(0), 1e-14);
}

TEST_CASE("an anchor exists exactly where a sink does", "[gradient]") {
  CHECK_FALSE(gradient_anchor({at::zeros({2}), {}}).defined());
  const at::Tensor anchor = gradient_anchor({at::zeros({2}), at::zeros({2})});
  CHECK(anchor.requires_grad());
  CHECK(anchor.numel() == 0);
}

TEST_CASE("a weight is checked together with its sink", "[gradient]") {
  const at::Tensor x = at::zeros({1}, at::kBFloat16);
  const auto check = [&](const at::Tensor& value, const at::Tensor& sink) {
    check_weight("op", "weight", {value, sink}, {2, -1}, {at::kBFloat16, at::kFloat}, x);
  };
  check(at::zeros({2, 3}, at::kBFloat16), at::zeros({2, 3}));
  check(at::zeros({2, 3}), {});
  CHECK(contains(message_of<UserError>([&] {
                   check(at::zeros({3, 2}), {});
                 }),
                 "expected shape [2, *], got [3, 2]"));
  CHECK(contains(message_of<UserError>([&] { check({}, {}); }), "got none"));
  CHECK(contains(message_of<UserError>([&] {
                   check(at::zeros({2, 3}), at::zeros({2, 3}, at::kBFloat16));
                 }),
                 "expected dtype Float, got BFloat16"));
  CHECK(contains(message_of<UserError>([&] {
                   check(at::zeros({2, 3}), at::zeros({3, 2}).t());
                 }),
                 "contiguous"));
}

}  // namespace osdn::test::gradient_test
