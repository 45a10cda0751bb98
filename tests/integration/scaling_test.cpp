// scripts/scaling.sh: the figures of docs/scaling.md.
#include <cmath>
#include <sstream>

#include "base/fs.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace osdn {
namespace scaling_test {

test::ProcessResult scaling(const std::vector<std::string>& arguments) {
  const TemporaryDirectory folder;
  std::vector<std::string> command = {"/bin/bash", std::string(OSDN_SOURCE_DIR) + "/scripts/scaling.sh"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return test::Process(command, folder.path()).wait();
}

/// Cells of the row that begins with this number of GPUs, after it.
std::vector<double> row_of(const std::string& table, int gpus) {
  std::istringstream lines(table);
  const std::string head = "| " + std::to_string(gpus) + " |";
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(head, 0) != 0) continue;
    std::vector<double> cells;
    std::istringstream fields(line.substr(head.size()));
    for (std::string cell; std::getline(fields, cell, '|');) cells.push_back(std::stod(cell));
    return cells;
  }
  return {};
}

enum Cell {
  kNodes,
  kTokens,
  kCompute,
  kWaiting,
  kScatter,
  kGather,
  kExposed,
  kOptimizer,
  kStep,
  kRate,
  kLinear
};

}  // namespace scaling_test

TEST_CASE("the paper model adds up by hand on two GPUs", "[scaling]") {
  namespace t = scaling_test;
  const test::ProcessResult result =
      t::scaling({"parameters=1e9", "tokens=65536", "sequence=2048", "rate=100000", "fixed_ms=0", "gpus=2",
                  "scatter=200", "gather=250", "hop_us=0", "bucket=1e8", "last=1e8", "copied=0.5",
                  "unequal=0.01", "memory=4000"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const std::vector<double> row = t::row_of(result.out, 2);
  REQUIRE(row.size() == 11);
  CHECK(row[t::kCompute] == Approx(327.7));               // 32768 / 100000 s
  CHECK(row[t::kWaiting] == Approx(3.3));                 // a hundredth
  CHECK(row[t::kScatter] == Approx(10.0));                // 4 GB, half of it over the link, at 200 GB/s
  CHECK(row[t::kGather] == Approx(4.0));                  // 2 GB, half of it, at 250 GB/s
  CHECK(row[t::kExposed] == Approx(1.4));                 // one bucket of ten of each
  CHECK(row[t::kOptimizer] == Approx(5.2).margin(0.06));  // 30 / 2 + 4 + 2 bytes each at 4 TB/s
  // Half of what is hidden is paid all the same.
  CHECK(row[t::kStep] == Approx(327.68 + 3.28 + 1.4 + 0.5 * 12.6 + 5.25).margin(0.1));
}

TEST_CASE("the paper model gives the step that two GPUs were measured at", "[scaling]") {
  namespace t = scaling_test;
  // docs/scaling.md, "Measured on two GPUs": 340M with copy engines: 152.18 ms alone on the slower GPU,
  // 155.45 on both.
  const auto step = [](const std::string& gpus) {
    const std::string table = t::scaling({"parameters=374362112", "rate=224700", "tokens_a_gpu=32768",
                                          "sequence=2048", "gpus=" + gpus})
                                  .out;
    return t::row_of(table, std::stoi(gpus)).at(t::kStep);
  };
  CHECK(step("1") == Approx(152.18).margin(0.06));
  CHECK(step("2") == Approx(155.45).margin(0.06));
}

TEST_CASE("the tables of the page on scaling are what its commands print", "[scaling]") {
  namespace t = scaling_test;
  const std::string page = read_file(std::string(OSDN_SOURCE_DIR) + "/docs/scaling.md");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{},
        {"nics=12.5"},
        {"parameters=374362112", "rate=224700"},
        {"parameters=374362112", "rate=224700", "tokens_a_gpu=32768", "sequence=2048", "gpus=2 4 8"},
        {"tokens_a_gpu=16384", "sequence=2048", "gpus=2 4 8"}}) {
    std::istringstream lines(t::scaling(arguments).out);
    for (std::string line; std::getline(lines, line);) {
      INFO(line);
      CHECK(page.find(line) != std::string::npos);
    }
  }
}

TEST_CASE("more GPUs and slower adapters expose more, and links without end expose nothing", "[scaling]") {
  namespace t = scaling_test;
  const std::string fast = t::scaling({}).out;
  const std::string slow = t::scaling({"nics=12.5"}).out;
  CHECK(t::row_of(slow, 8) == t::row_of(fast, 8));  // one node
  CHECK(t::row_of(slow, 16)[t::kExposed] > 10 * t::row_of(fast, 16)[t::kExposed]);
  CHECK(t::row_of(fast, 64)[t::kLinear] < t::row_of(fast, 16)[t::kLinear]);
  const std::string endless =
      t::scaling({"scatter=1e9", "gather=1e9", "nics=1e9", "hop_us=0", "node_hop_us=0"}).out;
  CHECK(t::row_of(endless, 64)[t::kExposed] == 0);
  const std::string too_many = t::scaling({"gpus=256"}).out;
  CHECK(too_many.find("less than a sequence of 4096") != std::string::npos);
}

TEST_CASE("a name or number that the paper model does not know is refused", "[scaling]") {
  namespace t = scaling_test;
  for (const char* wrong : {"gpuz=3", "rate=fast", "rate", "node=", "tokens=1;ls"}) {
    const test::ProcessResult result = t::scaling({wrong});
    INFO(wrong);
    CHECK(result.exit_code == 2);
    const bool named = result.err.find(wrong) != std::string::npos ||
                       result.err.find("expected a number") != std::string::npos;
    CHECK(named);
  }
}

}  // namespace osdn
