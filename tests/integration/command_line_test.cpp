// The program's front: help, exit codes, one line for every error, `osdn config`.
#include <algorithm>
#include <string>

#include "base/fs.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace osdn::test {

TEST_CASE("wrong usage ends with code 2, help and version with 0", "[command_line]") {
  const TemporaryDirectory folder;
  CHECK(run_osdn({}, folder.path()).exit_code == 2);
  CHECK(run_osdn({"frobnicate"}, folder.path()).exit_code == 2);
  CHECK(run_osdn({"train"}, folder.path()).exit_code == 2);
  CHECK(run_osdn({"config"}, folder.path()).exit_code == 2);
  CHECK(run_osdn({"--help"}, folder.path()).exit_code == 0);
  CHECK(run_osdn({"--version"}, folder.path()).out.find("LibTorch 2.11.") != std::string::npos);
  for (const char* command : {"train", "prepare", "tokenizer", "eval", "generate", "report", "inspect",
                              "bench", "config", "version"}) {
    INFO(command);
    const ProcessResult result = run_osdn({command, "--help"}, folder.path());
    CHECK(result.exit_code == 0);
    CHECK(result.out.find("Example:") != std::string::npos);
  }
}

TEST_CASE("a number that is none is refused with what was expected", "[command_line]") {
  const TemporaryDirectory folder;
  const ProcessResult size = run_osdn({"prepare", "--builtin", "--vocab-size", "1e9"}, folder.path());
  CHECK(size.exit_code == 2);
  CHECK(size.err.find(
            "osdn prepare: --vocab-size: expected a number, got \"1e9\" (whole numbers are written out") ==
        0);
  const ProcessResult ids = run_osdn({"tokenizer", "decode", "t.model", "abc"}, folder.path());
  CHECK(ids.exit_code == 2);
  CHECK(ids.err.find("expected a number, got \"abc\"") != std::string::npos);
}

TEST_CASE("an error is one line on stderr with the code of its kind", "[command_line]") {
  const TemporaryDirectory folder;
  atomic_write(folder.path() + "/bad.yaml", "train:\n  stepz: 3\n");
  const ProcessResult result = run_osdn({"config", "check", "bad.yaml"}, folder.path());
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(result.err.find("bad.yaml:2: train.stepz: unknown key (did you mean train.steps?)") !=
        std::string::npos);
  CHECK(run_osdn({"config", "check", "absent.yaml"}, folder.path()).exit_code == 2);
  CHECK(run_osdn({"train", "bad.yaml"}, folder.path()).exit_code == 2);
  CHECK(!std::filesystem::exists(folder.path() + "/runs"));
}

TEST_CASE("a box beyond stability is refused, and named by a warning where it is allowed", "[command_line]") {
  const TemporaryDirectory folder;
  atomic_write(folder.path() + "/run.yaml", "model: {osdn: {preset: osdn_apf_authors}}\n");
  const ProcessResult allowed = run_osdn({"config", "check", "run.yaml"}, folder.path());
  CHECK(allowed.exit_code == 0);
  CHECK(allowed.err.find("warning run.yaml: model.osdn.box: expected an upper bound of at most 2") !=
        std::string::npos);
  const ProcessResult refused =
      run_osdn({"config", "check", "run.yaml", "--set", "model.osdn.allow_unstable=false"}, folder.path());
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("model.osdn.box: expected an upper bound of at most 2") != std::string::npos);
  CHECK(
      run_osdn({"config", "check", "run.yaml", "--set", "model.osdn.box=[0, 2]"}, folder.path()).err.empty());
}

TEST_CASE("config print gives a configuration that checks, with the published parameter counts",
          "[command_line]") {
  const TemporaryDirectory folder;
  const std::string configs = std::string(OSDN_SOURCE_DIR) + "/configs/";
  const auto count = [&](const std::string& file) {
    const ProcessResult result = run_osdn({"config", "print", configs + file, "--parameters"}, folder.path());
    INFO(result.err);
    CHECK(result.exit_code == 0);
    atomic_write(folder.path() + "/printed.yaml", result.out);
    CHECK(run_osdn({"config", "check", "printed.yaml"}, folder.path()).out == "printed.yaml: valid\n");
    const std::string label = "# parameters: ";
    const size_t start = result.out.find(label);
    REQUIRE(start != std::string::npos);
    return std::stoll(result.out.substr(start + label.size()));
  };
  CHECK(run_osdn({"config", "check", configs + "delta_net_340m.yaml", "--parameters"}, folder.path())
            .out.find(": valid\n# parameters: 374362112\n") != std::string::npos);
  CHECK(count("delta_net_340m.yaml") == 374362112);
  CHECK(count("delta_net_1.3b.yaml") == 1365677056);
  CHECK(count("osdn_delta_net_340m.yaml") == 374362112 + 24 * 8 * 128);
  CHECK(count("osdn_delta_net_1.3b.yaml") == 1365677056 + 24 * 16 * 128);
  CHECK(count("osdn_apf_delta_net_340m.yaml") == 374362112 + 24 * (8 * 128 + 1024 * 8 + 8));
  CHECK(count("osdn_apf_delta_net_1.3b.yaml") == 1365677056 + 24 * (16 * 128 + 2048 * 16 + 16));
  CHECK(count("gated_delta_net_340m.yaml") == 379888124);
  CHECK(count("kda_1.3b.yaml") == 1390941568);
}

}  // namespace osdn::test
