// What is settled before the first step: memory that is not there is an error with a message, doubtful
// settings a warning.
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "config/config.h"
#include "model/lm.h"
#include "tensor/device.h"
#include "tensor/failure.h"
#include "tests/support/test.h"
#include "train/setup.h"

namespace osdn::train {
namespace {

std::string refusal_of(const optim::ParameterArena::Options& arena, int64_t num_parameters) {
  try {
    check_host_memory(arena, num_parameters);
  } catch (const EnvironmentError& failure) {
    return failure.what();
  }
  return {};
}

}  // namespace

// This program has sentencepiece in it as the real one has: its settings once lay over those of LibTorch.
TEST_CASE("a tensor that the machine has no memory for is an exception", "[setup]") {
  bool told = false;
  try {
    at::empty({int64_t{1} << 45}, at::kDouble);
  } catch (const std::exception& failure) {
    told = is_out_of_memory(failure);
  }
  CHECK(told);
}

TEST_CASE("other failures are not taken for a lack of memory", "[setup]") {
  CHECK_FALSE(is_out_of_memory(std::runtime_error("can't allocate memory, says somebody else")));
  bool mistaken = true;
  try {
    at::ones({2}).matmul(at::ones({3}));
  } catch (const std::exception& failure) {
    mistaken = is_out_of_memory(failure);
  }
  CHECK_FALSE(mistaken);
}

TEST_CASE("a model whose state the machine cannot hold is refused with both sizes", "[setup]") {
  CHECK(host_memory_bytes() > uint64_t{1} << 28);
  constexpr int64_t kMany = int64_t{1} << 45;
  CHECK(refusal_of({}, 1000).empty());
  const std::string refusal = refusal_of({}, kMany);
  INFO(refusal);
  CHECK(refusal.find("35184372088832 parameters need 524288.0 GiB") != std::string::npos);
  CHECK(refusal.find("this machine has") != std::string::npos);
  // A rank of four keeps its part of the moments; beside a bfloat16 copy also only its part of the masters.
  const optim::ParameterArena::Sharding quarter{.shared = true, .world_size = 4};
  CHECK(refusal_of({.sharding = quarter}, kMany).find("need 327680.0 GiB") != std::string::npos);
  CHECK(refusal_of({.compute = at::kBFloat16, .sharding = quarter}, kMany).find("need 294912.0 GiB") !=
        std::string::npos);
}

TEST_CASE("settings that hardly anybody wants are told", "[setup]") {
  const TemporaryDirectory folder;
  for (const char* name : {"/a.h5", "/b.h5", "/v.h5"}) atomic_write(folder.path() + name, "");
  config::Config config;
  config.optimizer.warmup_steps = 99;
  config.train.steps = 100;
  config.data.train = {{.path = folder.path() + "/[ab].h5"}};
  config.data.validation = {folder.path() + "/v.h5"};
  CHECK(doubtful_settings(config).empty());
  config.optimizer.warmup_steps = 100;
  config.data.validation = {folder.path() + "/./*.h5"};
  const std::vector<std::string> lines = doubtful_settings(config);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].find("optimizer.warmup_steps: 100 of train.steps = 100") == 0);
  CHECK(lines[1].find("a.h5 is trained on as well") != std::string::npos);
  CHECK(lines[2].find("b.h5 is trained on as well") != std::string::npos);
}

TEST_CASE("more parameters than can be counted are refused", "[setup]") {
  ParameterSpec matrix;
  matrix.shape = {int64_t{1} << 31, int64_t{1} << 31};
  CHECK(model::count_parameters({matrix}) == int64_t{1} << 62);
  CHECK_THROWS_AS(model::count_parameters({matrix, matrix}), UserError);
}

}  // namespace osdn::train
