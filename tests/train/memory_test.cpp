// Too little memory is an error with a message, never the end of the process.
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "config/config.h"
#include "model/lm.h"
#include "tensor/device.h"
#include "tensor/failure.h"
#include "tests/support/test.h"
#include "train/setup.h"

namespace osdn::train {
namespace {

std::string refusal_of(int64_t num_parameters) {
  try {
    check_host_memory(at::kCPU, num_parameters);
  } catch (const EnvironmentError& failure) {
    return failure.what();
  }
  return {};
}

}  // namespace

// This program has sentencepiece in it as the real one has: its settings once lay over those of LibTorch.
TEST_CASE("a tensor that the machine has no memory for is an exception", "[memory]") {
  bool told = false;
  try {
    at::empty({int64_t{1} << 45}, at::kDouble);
  } catch (const std::exception& failure) {
    told = is_out_of_memory(failure);
  }
  CHECK(told);
}

TEST_CASE("other failures are not taken for a lack of memory", "[memory]") {
  CHECK_FALSE(is_out_of_memory(std::runtime_error("can't allocate memory, says somebody else")));
  bool mistaken = true;
  try {
    at::ones({2}).matmul(at::ones({3}));
  } catch (const std::exception& failure) {
    mistaken = is_out_of_memory(failure);
  }
  CHECK_FALSE(mistaken);
}

TEST_CASE("a model whose state the machine cannot hold is refused with both sizes", "[memory]") {
  CHECK(host_memory_bytes() > uint64_t{1} << 28);
  CHECK(refusal_of(1000).empty());
  const std::string refusal = refusal_of(int64_t{1} << 45);
  INFO(refusal);
  CHECK(refusal.find("35184372088832 parameters need 524288.0 GiB") != std::string::npos);
  CHECK(refusal.find("this machine has") != std::string::npos);
}

TEST_CASE("more parameters than can be counted are refused", "[memory]") {
  ParameterSpec matrix;
  matrix.shape = {int64_t{1} << 31, int64_t{1} << 31};
  CHECK(model::count_parameters({matrix}) == int64_t{1} << 62);
  CHECK_THROWS_AS(model::count_parameters({matrix, matrix}), UserError);
}

}  // namespace osdn::train
