// The event files as TensorBoard's own reader sees them, where python3 has the package tensorboard
// (OSDN_PYTHON names another interpreter).
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "base/fs.h"
#include "metrics/step_record.h"
#include "metrics/tensorboard_writer.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace osdn::metrics::test {
namespace tensorboard_reader_test_detail {

StepRecord record_of(int64_t step, double shift) {
  StepRecord record;
  record.step = step;
  record.tokens = step * 512;
  record.loss = step == 4 ? std::nan("") : 3.0 / static_cast<double>(step) + shift;
  record.learning_rate = 1e-3;
  record.grad_norm = step == 4 ? std::nan("") : 0.7 + shift;
  record.skipped = step == 4;
  record.clipped = step % 3 == 0;
  record.tokens_per_second = 1000.5;
  record.memory_gib = 0.3;
  if (step % 2 == 0) {
    ResidualFields fields;
    fields.q_geo = 0.3 + shift;
    fields.retention_mean = std::nan("");
    record.residual = fields;
    record.residual_layers = {fields, fields};
  }
  if (step == 6) record.validation = Validation{3.0, 20.0, 1.5};
  return record;
}

}  // namespace tensorboard_reader_test_detail

TEST_CASE("TensorBoard reads every scalar at its step, of a resumed run only what counts",
          "[tensorboard_reader][interop]") {
  namespace detail = tensorboard_reader_test_detail;
  const TemporaryDirectory directory;
  const osdn::test::ProcessResult packages =
      osdn::test::Process({"/bin/bash", OSDN_SOURCE_DIR "/tests/interop/packages.sh", "tensorboard==2.21.0",
                           "setuptools==65.5.0"},
                          directory.path())
          .wait();
  if (packages.exit_code != 0) {
    std::fputs(packages.err.c_str(), stderr);  // CTest shows the test as skipped
    REQUIRE(packages.exit_code == 77);
    return;
  }
  {
    TensorboardWriter killed(directory.path() + "/tensorboard");
    for (int64_t step = 1; step <= 5; ++step) killed.append(detail::record_of(step, step > 3 ? 9.0 : 0.0));
  }
  std::string lines;
  {
    TensorboardWriter resumed(directory.path() + "/tensorboard");  // from a checkpoint of step 3
    for (int64_t step = 4; step <= 8; ++step) resumed.append(detail::record_of(step, 0.0));
  }
  for (int64_t step = 1; step <= 8; ++step) lines += to_json_line(detail::record_of(step, 0.0)) + "\n";
  atomic_write(directory.path() + "/metrics.jsonl", lines);
  const osdn::test::ProcessResult result =
      osdn::test::Process({"/usr/bin/env", "python3",
                           OSDN_SOURCE_DIR "/tests/interop/reference_tensorboard.py", directory.path()},
                          directory.path(), {{"PYTHONPATH", packages.out.substr(0, packages.out.find('\n'))}})
          .wait();
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out.find("differs:") == std::string::npos);
  CHECK(result.out.find("tags: ") != std::string::npos);
}

}  // namespace osdn::metrics::test
