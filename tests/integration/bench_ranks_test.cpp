// scripts/bench_ranks.sh: the page of several GPUs, and the measurements themselves on the processor.
#include <map>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace osdn {
namespace bench_ranks_test {

test::ProcessResult bench_ranks(const std::vector<std::string>& arguments) {
  const TemporaryDirectory folder;
  std::vector<std::string> command = {"/bin/bash", std::string(OSDN_SOURCE_DIR) + "/scripts/bench_ranks.sh"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return test::Process(command, folder.path()).wait();
}

std::string line(const char* settings, int gpus, int rate, int first = 0) {
  return fmt::format(
      "{{\"kind\": \"rate\", \"configuration\": \"delta_net_340m\", \"sequences\": 16, \"settings\": \"{}\", "
      "\"gpus\": {}, "
      "\"first_gpu\": {}, "
      "\"step_ms\": 150.25, \"tokens_per_second\": {}, \"memory_gib\": 45.42, \"before_activations_gib\": "
      "6.28, "
      "\"loss\": 5.125, \"commit\": \"abc\"}}\n",
      settings, gpus, first, rate);
}

}  // namespace bench_ranks_test

TEST_CASE("the page of several GPUs holds each run against one GPU with the same settings", "[bench_ranks]") {
  namespace t = bench_ranks_test;
  const TemporaryDirectory folder;
  const std::string lines = folder.path() + "/lines.jsonl";
  atomic_write(lines, t::line("", 1, 200000) + t::line("", 1, 195000, 1) + t::line("", 2, 387000) +
                          t::line(":distributed.zero=0", 2, 390000) +
                          t::line(":metrics.residual_every_steps=1", 1, 100000) +
                          t::line(":metrics.residual_every_steps=1", 1, 100000, 1) +
                          t::line(":metrics.residual_every_steps=1", 2, 190000));
  const test::ProcessResult page = t::bench_ranks({"--page", lines, "NVIDIA H200"});
  INFO(page.out << page.err);
  REQUIRE(page.exit_code == 0);
  for (const char* row :
       {"| delta_net_340m | 16 | | number 1 | 150.25 | 195000 |  |  | 6.28 | 45.42 | 5.125 | abc |",
        "| delta_net_340m | 16 | | 2 | 150.25 | 387000 | 98.0 % | 99.2 % |",
        "| delta_net_340m | 16 | distributed.zero=0 | 2 | 150.25 | 390000 | 98.7 % | 100.0 % |",
        "| delta_net_340m | 16 | metrics.residual_every_steps=1 | 2 | 150.25 | 190000 | 95.0 % | 95.0 % |"}) {
    INFO(row);
    CHECK(page.out.find(row) != std::string::npos);
  }
  // Nothing else was measured.
  for (const char* table : {"What the exchange costs", "The same losses", "A rank that dies"})
    CHECK(page.out.find(table) == std::string::npos);
}

TEST_CASE(
    "GPUs beside each other are held against themselves, and a page has a table of all that was measured",
    "[bench_ranks]") {
  namespace t = bench_ranks_test;
  const TemporaryDirectory folder;
  const std::string lines = folder.path() + "/lines.jsonl";
  std::string text;
  for (int gpu = 0; gpu < 8; ++gpu) text += t::line("", 1, gpu < 2 ? 200000 : 100000, gpu);
  text += t::line("", 2, 390000) + t::line("", 4, 390000, 2) + t::line("", 8, 760000);
  text += t::line(":metrics.residual_every_steps=1", 8, 750000);
  text +=
      "{\"kind\": \"exchange\", \"settings\": \"\", \"gpus\": 8, \"op\": \"exchange\", \"configuration\": "
      "\"delta_net_340m\", \"sequences\": 16, \"sequence_length\": 2048, \"parameters\": 5, \"zero\": 1, "
      "\"ranks\": 8, "
      "\"gradients_ms\": 5.125, \"gradients_gb_per_s\": 260.5, \"weights_ms\": 2.500, \"weights_gb_per_s\": "
      "255.1, "
      "\"step_ms\": 155.25, \"step_gradients_ms\": 154.25, \"step_alone_ms\": 152.50, \"hidden_share\": "
      "0.639, \"hidden_by_backward\": 0.659}\n"
      "{\"kind\": \"curve\", \"configuration\": \"osdn\", \"global_sequences\": 16, \"gpus\": 8, \"steps\": "
      "80, "
      "\"first_loss\": 10.5, \"last_loss\": 6.25, \"differing\": 7, \"largest_difference\": 3.00e-07, "
      "\"commit\": "
      "\"abc\"}\n"
      "{\"kind\": \"kill\", \"configuration\": \"osdn\", \"global_sequences\": 16, \"gpus\": 8, \"steps\": "
      "40, "
      "\"first_loss\": 10.5, \"last_loss\": 7.25, \"differing\": 0, \"largest_difference\": 0.00e+00, "
      "\"rank\": 7, "
      "\"after_step\": 21, \"resumed_from\": 20, \"seconds_lost\": 9.5, \"exit_code\": 143, \"commit\": "
      "\"abc\"}\n"
      "{\"kind\": \"resume\", \"configuration\": \"osdn\", \"global_sequences\": 16, \"gpus\": 2, \"steps\": "
      "52, "
      "\"first_loss\": 10.5, \"last_loss\": 7.0, \"differing\": 9, \"largest_difference\": 4.00e-07, "
      "\"before\": 8, "
      "\"after_step\": 42, \"commit\": \"abc\"}\n";
  atomic_write(lines, text);
  const test::ProcessResult page = t::bench_ranks({"--page", lines, "NVIDIA H200"});
  INFO(page.out << page.err);
  REQUIRE(page.exit_code == 0);
  for (const char* row :
       {"| 2 | 150.25 | 390000 | 97.5 % | 97.5 % |",  // numbers 0 and 1: 400,000
        "| 4 | 150.25 | 390000 | 97.5 % | 97.5 % |",  // numbers 2 to 5: 400,000
        "| 8 | 150.25 | 760000 | 76.0 % | 95.0 % |",  // all: 1,000,000, eight times the slowest 800,000
        "| delta_net_340m | 16 | 8 | 150.25 | 150.25 | 0.0 % |",
        "| delta_net_340m | 16 | | 8 | 5.125 | 260.5 | 2.500 | 255.1 | 152.50 | 154.25 | 155.25 | 65.9 % | "
        "63.9 % |",
        "| osdn | 16 | 8 | 80 | 10.5 | 6.25 | 7 | 3.00e-07 | abc |",
        "| rank 7 killed | 8 | 21 | 20 | 9.5 | 143 | 40 | 0 | 0.00e+00 | abc |",
        "| resumed on fewer | 8 to 2 | 42 | 42 |  |  | 52 | 9 | 4.00e-07 | abc |"}) {
    INFO(row);
    CHECK(page.out.find(row) != std::string::npos);
  }
}

TEST_CASE("on the processor the script measures all that it measures on GPUs, and loses nothing",
          "[bench_ranks][slow]") {
  namespace t = bench_ranks_test;
  const test::ProcessResult result =
      t::bench_ranks({"--cpu", "--binary", OSDN_BINARY, "--gpus", "1 2 4", "--steps", "8"});
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  std::map<std::string, int> seen;
  std::istringstream lines(result.out);
  for (std::string text; std::getline(lines, text);) {
    const Json line = Json::parse(text);
    const std::string kind = line["kind"];
    ++seen[kind];
    INFO(text);
    if (kind == "rate") CHECK(line["tokens_per_second"].get<double>() > 0);
    if (kind == "exchange") {
      CHECK(line["gradients_ms"].get<double>() > 0);
      CHECK(line["weights_ms"].get<double>() > 0);
      for (const char* step : {"step_ms", "step_gradients_ms", "step_alone_ms"})
        CHECK(line[step].get<double>() > 0);
    }
    // Of one batch on other numbers of processes: fp32 sums in another order.
    if (kind == "curve" || kind == "resume") CHECK(line["largest_difference"].get<double>() < 1e-5);
    if (kind == "kill") {
      CHECK(line["differing"].get<int>() == 0);
      CHECK(line["resumed_from"].get<int>() > 0);
      CHECK(line["exit_code"].get<int>() == 143);
    }
  }
  CHECK(seen ==
        std::map<std::string, int>{{"rate", 7}, {"exchange", 4}, {"curve", 3}, {"kill", 1}, {"resume", 1}});
}

TEST_CASE("a case of several GPUs that names no configuration is refused", "[bench_ranks]") {
  namespace t = bench_ranks_test;
  for (const char* wrong :
       {"no_such_model:16", "delta_net_340m", "delta_net_340m:many", "delta_net_340m:16:zero"}) {
    const test::ProcessResult result = t::bench_ranks({wrong});
    INFO(wrong << result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find(wrong) != std::string::npos);
  }
  for (const char* parts : {"speed", "kill", "curve resume", "kill curve"}) {
    const test::ProcessResult result = t::bench_ranks({"--parts", parts});
    INFO(parts << result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find("--parts") != std::string::npos);
  }
}

}  // namespace osdn
