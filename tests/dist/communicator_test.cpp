#include "dist/communicator.h"

#include <cstdlib>
#include <memory>
#include <string>

#include "base/error.h"
#include "tests/support/test.h"

namespace communicator_test {

/// Sets environment variables for one scope and puts the old values back.
class Environment {
 public:
  explicit Environment(std::vector<std::pair<std::string, std::string>> values) {
    for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}) {
      if (const char* old = std::getenv(name)) saved_.emplace_back(name, old);
      ::unsetenv(name);
    }
    for (const auto& [name, value] : values) {
      set_.push_back(name);
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : saved_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<std::pair<std::string, std::string>> saved_;
  std::vector<std::string> set_;
};

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
  const auto communicator = osdn::dist::make_communicator({}, {});
  CHECK(communicator->rank() == 0);
  CHECK(communicator->world_size() == 1);
  const at::Tensor range = at::arange(5, at::kDouble);  // [5]
  const at::Tensor before = range.clone();
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
  const auto communicator = osdn::dist::make_single_communicator();
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

TEST_CASE("the world comes from the launcher's variables", "[communicator]") {
  {
    const communicator_test::Environment none({});
    CHECK(osdn::dist::world_from_environment().world_size == 1);
  }
  {
    const communicator_test::Environment torchrun({{"RANK", "3"}, {"WORLD_SIZE", "8"}});
    CHECK(osdn::dist::world_from_environment().rank == 3);
    CHECK(osdn::dist::world_from_environment().world_size == 8);
  }
  {
    const communicator_test::Environment mpi({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
    CHECK(osdn::dist::world_from_environment().rank == 1);
  }
  {
    const communicator_test::Environment wrong({{"RANK", "8"}, {"WORLD_SIZE", "8"}});
    CHECK_THROWS_AS(osdn::dist::world_from_environment(), osdn::UserError);
  }
  {
    const communicator_test::Environment word({{"RANK", "0"}, {"WORLD_SIZE", "two"}});
    const std::string message =
        communicator_test::message_of<osdn::UserError>([] { osdn::dist::world_from_environment(); });
    CHECK(communicator_test::contains(message, "WORLD_SIZE"));
    CHECK(communicator_test::contains(message, "\"two\""));
  }
}

TEST_CASE("more than one process is refused, not run side by side", "[communicator]") {
  const auto several = [] { osdn::dist::make_communicator({}, {.rank = 0, .world_size = 2}); };
  CHECK(communicator_test::contains(communicator_test::message_of<osdn::UserError>(several), "one process"));
  osdn::config::Distributed options;
  options.processes_per_node = 4;
  CHECK_THROWS_AS(osdn::dist::make_communicator(options, {}), osdn::UserError);
}
