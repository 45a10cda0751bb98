// `osdn bench`: a JSON line a case, picked by options; what cannot be picked is refused.
#include <fmt/format.h>

#include <sstream>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/json.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace osdn::test {

TEST_CASE("osdn bench prints a line of times and rates for every case that the options pick", "[bench]") {
  const TemporaryDirectory folder;
  const ProcessResult result = run_osdn(
      {"bench", "delta_rule", "--device", "cpu", "--gate", "scalar", "--write-key", "given"}, folder.path());
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  std::istringstream lines(result.out);
  std::vector<std::string> passes;
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    const Json record = Json::parse(line);
    CHECK(record["op"] == "delta_rule");
    CHECK(record["gate"] == "scalar");
    CHECK(record["write_key"] == "given");
    CHECK(record["shape"] == "B8 T256 H3 K64 V64");
    CHECK(record["device"] == "cpu");
    CHECK(record["error"].get<double>() < 1e-4);
    for (const char* number : {"median_ms", "gb_per_s", "tflop_per_s", "share_of_bound"})
      CHECK(record[number].get<double>() > 0);
    passes.push_back(record["pass"]);
  }
  CHECK(passes == std::vector<std::string>{"forward", "forward+backward"});
}

TEST_CASE("osdn bench refuses an unknown op, a choice without cases and a GPU that is not there", "[bench]") {
  const TemporaryDirectory folder;
  const ProcessResult unknown = run_osdn({"bench", "delta_rul"}, folder.path());
  CHECK(unknown.exit_code == 2);
  CHECK(unknown.err.find("bench: expected one of ") != std::string::npos);
  CHECK(unknown.err.find("got \"delta_rul\"") != std::string::npos);
  CHECK(run_osdn({"bench", "delta_rule", "--device", "cpu", "--shape", "T999"}, folder.path()).exit_code ==
        2);
  CHECK(run_osdn({"bench", "delta_rule", "--gate", "both"}, folder.path()).exit_code == 2);
  const ProcessResult absent =
      run_osdn({"bench", "delta_rule", "--device", "cuda"}, folder.path(), {{"CUDA_VISIBLE_DEVICES", ""}});
  CHECK(absent.exit_code == 3);
  CHECK(absent.err.find("no GPU") != std::string::npos);
}

TEST_CASE("osdn bench exchange times what ranks exchange, and steps with it and without", "[bench][dist]") {
  const TemporaryDirectory folder;
  atomic_write(folder.path() + "/run.yaml",
               "model: {vocab_size: 64, hidden_size: 32, num_layers: 2, num_heads: 1, head_dim: 32}\n"
               "data: {sequence_length: 32}\n"
               "train: {global_batch_tokens: 128, micro_batch_sequences: 1}\n");
  for (const int zero : {0, 1}) {
    const ProcessResult result =
        run_osdn({"bench", "exchange", "run.yaml", "--processes", "2", "--steps", "3", "--set",
                  "run.device=cpu", "--set", fmt::format("distributed.zero={}", zero)},
                 folder.path(), {{"OMP_NUM_THREADS", "1"}});
    INFO(result.err << result.out);
    REQUIRE(result.exit_code == 0);
    const Json line = Json::parse(result.out);  // one, by rank 0
    CHECK(line["op"] == "exchange");
    CHECK(line["configuration"] == "run");
    CHECK(line["ranks"] == 2);
    CHECK(line["zero"] == zero);
    CHECK(line["gradients_ms"].get<double>() > 0);
    CHECK((line["weights_ms"].get<double>() > 0) == (zero == 1));
    CHECK(line["step_alone_ms"].get<double>() > 0);
    const double exchanged = line["gradients_ms"].get<double>() + line["weights_ms"].get<double>();
    const double longer = line["step_ms"].get<double>() - line["step_alone_ms"].get<double>();
    const double by_gradients = line["step_gradients_ms"].get<double>() - line["step_alone_ms"].get<double>();
    const double sums = line["gradients_ms"].get<double>();
    CHECK(line["hidden_by_backward"].get<double>() ==
          Approx(1 - by_gradients / sums).margin(0.02 / sums + 0.01));
    // From rounded times.
    CHECK(line["hidden_share"].get<double>() ==
          Approx(1 - longer / exchanged).margin(0.02 / exchanged + 0.01));
  }
  const ProcessResult alone =
      run_osdn({"bench", "exchange", "run.yaml", "--set", "run.device=cpu"}, folder.path());
  CHECK(alone.exit_code == 2);
  CHECK(alone.err.find("at least two processes") != std::string::npos);
}

}  // namespace osdn::test
