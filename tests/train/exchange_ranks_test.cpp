// Training of several ranks that exchange by copy engines: on as many GPUs as there are, or all on one.
#include <cmath>
#include <memory>
#include <string>

#include "dist/detail/peer_communicator.h"
#include "tensor/device.h"
#include "tests/dist/staged_communicator.h"
#include "tests/support/ranks.h"
#include "tests/train/train_folder.h"
#include "train/trainer.h"

namespace osdn::train {
namespace exchange_ranks_test {

/// Everything but the exchange itself goes through the host: NCCL takes no two ranks on one GPU.
std::unique_ptr<dist::Communicator> connect(const dist::LaunchEnvironment& launched, at::Device device,
                                            std::chrono::seconds timeout) {
  return dist::detail::make_peer_communicator(
      std::make_unique<test::StagedCommunicator>(launched, device, timeout), {.timeout = timeout});
}

config::Config small_run(const TrainFolder& folder, const std::string& name, int64_t zero,
                         config::Exchange exchange) {
  config::Config made = folder.config(name, config::Device::kCuda, config::Precision::kBfloat16);
  made.train.steps = 12;
  made.train.micro_batch_sequences = 2;  // two micro-batches a rank of two
  made.evaluation = {.every_steps = 4, .sequences = 8};
  made.checkpoint.every_steps = 4;
  made.distributed.zero = zero;
  made.distributed.exchange = exchange;
  made.distributed.timeout_seconds = 60;
  return made;
}

void train_on(int world_size, const config::Config& config) {
  const int port = test::free_port();
  test::Ranks ranks(world_size, [&](int rank) {
    if (world_size == 1) return std::to_string(static_cast<int>(train(config, {}, {})));
    const ExitCode code = train(config, test::rank_on_loopback(rank, world_size, port), {}, connect);
    return std::to_string(static_cast<int>(code));
  });
  for (const test::RankResult& result : ranks.wait_all()) {
    INFO(config.run.name << ": " << result.text);
    REQUIRE(result.text == "0");
  }
}

void check_losses(const TrainFolder& folder, const std::string& a, const std::string& b, double tolerance) {
  const auto expected = folder.metrics(a);
  const auto found = folder.metrics(b);
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    for (const char* field : {"loss", "grad_norm", "validation_loss"}) {
      INFO(b << ", step " << i + 1 << " " << field);
      REQUIRE(found[i].contains(field) == expected[i].contains(field));
      if (!found[i].contains(field)) continue;
      const double value = expected[i][field].get<double>();
      CHECK(std::abs(found[i][field].get<double>() - value) <= tolerance * std::abs(value));
    }
}

}  // namespace exchange_ranks_test

TEST_CASE("two ranks that exchange by copy engines train to the bits of two that do not, and like one",
          "[exchange_ranks][cuda]") {
  namespace t = exchange_ranks_test;
  const TrainFolder folder;
  t::train_on(1, t::small_run(folder, "one", 1, config::Exchange::kAuto));
  for (const int64_t zero : {0, 1}) {
    const std::string copies = "copies-" + std::to_string(zero);
    const std::string others = "others-" + std::to_string(zero);
    t::train_on(2, t::small_run(folder, copies, zero, config::Exchange::kAuto));
    t::train_on(2, t::small_run(folder, others, zero, config::Exchange::kNccl));
    check_same_bits(folder.newest(others), folder.newest(copies));
    t::check_losses(folder, others, copies, 0);
    t::check_losses(folder, "one", copies, 1e-2);
  }
}

TEST_CASE(
    "a run goes on by copy engines to the bits of one that was not stopped, on other numbers of ranks too",
    "[exchange_ranks][cuda]") {
  namespace t = exchange_ranks_test;
  const TrainFolder folder;
  config::Config config = t::small_run(folder, "straight", 1, config::Exchange::kAuto);
  t::train_on(2, config);
  config.run.name = "stopped";
  config.train.steps = 8;
  t::train_on(2, config);
  config.train.steps = 12;
  t::train_on(2, config);
  check_same_bits(folder.newest("straight"), folder.newest("stopped"));
  config.run.name = "elastic";
  config.train.steps = 0;
  for (const int world_size : {2, 1, 2}) {
    config.train.steps += 4;
    t::train_on(world_size, config);
  }
  t::check_losses(folder, "straight", "elastic", 1e-2);
}

}  // namespace osdn::train
