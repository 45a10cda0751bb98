// scripts/bench_ranks.sh: the page of several GPUs.
#include "base/error.h"
#include "base/fs.h"
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
      "{{\"configuration\": \"delta_net_340m\", \"sequences\": 16, \"settings\": \"{}\", \"gpus\": {}, "
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
}

}  // namespace osdn
