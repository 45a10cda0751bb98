// Captured training in processes of their own: on two GPUs where there are two, and one whose replay is held
// up.
#include "tensor/device.h"
#include "tests/train/graph_runs.h"

namespace osdn::train {

TEST_CASE("on two GPUs, captured training has the bits of training without a graph, with ZeRO-0 and 1",
          "[passes_ranks][cuda]") {
  // Asked in a process of its own: one that has spoken to the driver must not fork ranks that do.
  test::Ranks one(1, [](int) { return std::to_string(num_gpus()); });
  if (std::stoi(one.wait(0).text) < 2) return;
  const TrainFolder folder;
  for (const int64_t zero : {0, 1}) {
    for (const bool captured : {false, true}) {
      config::Config config =
          graph_run(folder, (captured ? "graph-" : "eager-") + std::to_string(zero), captured);
      config.train.micro_batch_sequences = 2;
      config.train.steps = 40;
      config.distributed.zero = zero;
      const int port = test::free_port();
      test::Ranks ranks(2, [&](int rank) {
        return std::to_string(static_cast<int>(train(config, test::rank_on_loopback(rank, 2, port), {})));
      });
      for (const test::RankResult& result : ranks.wait_all()) {
        INFO(config.run.name << ": " << result.text);
        REQUIRE(result.text == "0");
      }
    }
    check_equal_runs(folder, "eager-" + std::to_string(zero), "graph-" + std::to_string(zero));
  }
}

TEST_CASE("a replay that is held up ends by time-out, naming rank, step and collective",
          "[passes_ranks][cuda]") {
  test::Ranks ranks(1, [](int) -> std::string {
    GraphModel captured(std::chrono::seconds(2), true);
    captured.step(64);
    captured.step(64);
    captured.communicator->to_host(captured.passes.loss_sum());
    // Products before the graph on its stream, some 6 s of them, stand for a rank that does not come.
    const at::Tensor matrix = at::ones({16384, 16384}, at::TensorOptions().device(captured.device));
    at::Tensor product = at::mm(matrix, matrix);
    for (int i = 0; i < 40; ++i) at::mm_out(product, matrix, matrix);
    captured.communicator->set_step(3);
    captured.step(64);
    captured.communicator->to_host(captured.passes.loss_sum());
    return "not noticed";
  });
  const auto start = std::chrono::steady_clock::now();
  const test::RankResult result = ranks.wait(0);
  INFO(result.text);
  CHECK(result.exit_code == static_cast<int>(ExitCode::kEnvironmentError));
  CHECK(result.text.find("rank 0 of 1, step 3: all_gather of weights of bucket ") == 0);
  CHECK(result.text.find(": not finished within 2 s") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

}  // namespace osdn::train
