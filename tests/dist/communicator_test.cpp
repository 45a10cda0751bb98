#include "dist/communicator.h"

#include <cstdlib>
#include <memory>
#include <string>

#include "base/error.h"
#include "tests/support/test.h"

namespace communicator_test {

template <typename Exception, typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const Exception& failure) {
    return failure.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace communicator_test

TEST_CASE("in a world of one every collective leaves its range as it is", "[communicator]") {
  const auto communicator = osdn::dist::make_communicator({}, at::kCPU, std::chrono::seconds(10));
  CHECK(communicator->rank() == 0);
  CHECK(communicator->world_size() == 1);
  const at::Tensor range = at::arange(5, at::kDouble);  // [5]
  const at::Tensor before = range.clone();
  CHECK(communicator->device().is_cpu());
  CHECK(communicator->open_board() == nullptr);
  CHECK(communicator->broadcast_text("a text", "t") == "a text");
  CHECK(communicator->broadcast_text("", "t").empty());
  communicator->barrier("the start");
  communicator->all_reduce_sum(range, "a");
  communicator->all_reduce_max(range, "b");
  communicator->broadcast(range, 0, "c");
  communicator->all_gather(range, "d");
  communicator->reduce_scatter(range, "e");
  CHECK(at::equal(range, before));
  const at::Tensor weights = at::ones({3}, at::kBFloat16);
  communicator->all_gather(weights, "bf16 weights");
  CHECK(at::equal(weights, at::ones({3}, at::kBFloat16)));
}

TEST_CASE("a collective on an unfit range names rank, step and collective", "[communicator]") {
  const auto communicator = osdn::dist::make_single_communicator(at::kCPU);
  communicator->set_step(17);
  const at::Tensor matrix = at::zeros({4, 4});
  const std::string strided = communicator_test::message_of<osdn::InternalError>(
      [&] { communicator->all_reduce_sum(matrix.t().narrow(0, 0, 2), "gradients of bucket 3"); });
  CHECK(
      communicator_test::contains(strided, "rank 0 of 1, step 17: all_reduce_sum of gradients of bucket 3"));
  CHECK(communicator_test::contains(strided, "contiguous"));
  const std::string dtype = communicator_test::message_of<osdn::InternalError>(
      [&] { communicator->reduce_scatter(matrix.to(at::kBFloat16), "gradients"); });
  CHECK(communicator_test::contains(dtype, "BFloat16"));
  const std::string root = communicator_test::message_of<osdn::InternalError>(
      [&] { communicator->broadcast(matrix, 1, "weights"); });
  CHECK(communicator_test::contains(root, "no rank 1"));
  CHECK_THROWS_AS(communicator->all_gather(at::Tensor(), "nothing"), osdn::InternalError);
}
