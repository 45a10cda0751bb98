#include "metrics/jsonl_writer.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "tests/support/catch.h"

namespace osdn::metrics::test {

namespace jsonl_writer_test_detail {

StepRecord record_at(int64_t step) {
  StepRecord record;
  record.step = step;
  record.tokens = step * 4096;
  record.loss = 1.0 / static_cast<double>(step);
  record.grad_norm = 0.1 * static_cast<double>(step);
  return record;
}

void write_steps(const std::string& path, int64_t last_step, int64_t from, int64_t to) {
  JsonlWriter writer(path, last_step);
  for (int64_t step = from; step <= to; ++step) writer.append(record_at(step));
  writer.sync();
}

std::vector<int64_t> steps_in(const std::string& path) {
  std::vector<int64_t> steps;
  std::istringstream stream(read_file(path));
  for (std::string line; std::getline(stream, line);)
    steps.push_back(Json::parse(line)["step"].get<int64_t>());
  return steps;
}

std::string data_error(const std::string& path, int64_t last_step) {
  try {
    JsonlWriter writer(path, last_step);
  } catch (const DataError& failure) {
    return failure.what();
  }
  return {};
}

}  // namespace jsonl_writer_test_detail

TEST_CASE("numbers read back bit-exactly and non-finite ones are null", "[jsonl_writer]") {
  StepRecord record;
  record.step = int64_t{1} << 53;
  record.tokens = (int64_t{1} << 62) + 1;
  record.loss = 0.1 + 0.2;
  record.learning_rate = 5e-324;
  record.grad_norm = std::numeric_limits<double>::quiet_NaN();
  record.tokens_per_second = std::numeric_limits<double>::infinity();
  record.mfu = 1.0 / 3.0;
  record.memory_gib = 3;
  ResidualFields residual;
  residual.q_geo = 2.0 / 7.0;
  residual.retention_mean = std::numeric_limits<double>::quiet_NaN();
  record.residual = residual;
  record.residual_layers = {residual, residual};
  record.validation = Validation{2.5, std::exp(2.5), 0.9};

  const std::string text = to_json_line(record);
  CHECK(text.find('\n') == std::string::npos);
  const Json line = Json::parse(text);
  CHECK(line["step"].get<int64_t>() == record.step);
  CHECK(line["tokens"].get<int64_t>() == record.tokens);
  CHECK(line["loss"].get<double>() == record.loss);
  CHECK(line["perplexity"].get<double>() == std::exp(record.loss));
  CHECK(line["learning_rate"].get<double>() == record.learning_rate);
  CHECK(line["mfu"].get<double>() == record.mfu);
  CHECK(line["grad_norm"].is_null());
  CHECK(line["tokens_per_second"].is_null());
  CHECK(line["memory_gib"].get<double>() == 3);
  CHECK(line["q_geo"].get<double>() == residual.q_geo);
  CHECK(line["retention_mean"].is_null());
  CHECK(line["layers"]["q_geo"].size() == 2);
  CHECK(line["layers"]["q_geo"][1].get<double>() == residual.q_geo);
  CHECK(line["layers"]["retention_mean"][0].is_null());
  CHECK(line["validation_bits_per_byte"].get<double>() == 0.9);
  CHECK_FALSE(Json::parse(to_json_line(StepRecord{})).contains("q_geo"));
  CHECK_FALSE(Json::parse(to_json_line(StepRecord{})).contains("layers"));
  CHECK_FALSE(Json::parse(to_json_line(StepRecord{})).contains("validation_loss"));
}

TEST_CASE("a resumed run cuts off what came after its checkpoint", "[jsonl_writer]") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/metrics.jsonl";
  jsonl_writer_test_detail::write_steps(path, 0, 1, 10);
  const std::string straight = read_file(path);
  jsonl_writer_test_detail::write_steps(path, 6, 7, 10);
  CHECK(read_file(path) == straight);
  jsonl_writer_test_detail::write_steps(path, 3, 4, 4);
  CHECK(jsonl_writer_test_detail::steps_in(path) == std::vector<int64_t>{1, 2, 3, 4});
  jsonl_writer_test_detail::write_steps(path, 0, 1, 1);
  CHECK(jsonl_writer_test_detail::steps_in(path) == std::vector<int64_t>{1});
}

TEST_CASE("lines that are not at every step are kept up to the checkpoint's step", "[jsonl_writer]") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/metrics.jsonl";
  {
    JsonlWriter writer(path, 0);
    for (const int64_t step : {2, 4, 6, 8}) writer.append(jsonl_writer_test_detail::record_at(step));
  }
  jsonl_writer_test_detail::write_steps(path, 5, 6, 6);
  CHECK(jsonl_writer_test_detail::steps_in(path) == std::vector<int64_t>{2, 4, 6});
}

TEST_CASE("a torn last line is dropped wherever it was cut", "[jsonl_writer]") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/metrics.jsonl";
  jsonl_writer_test_detail::write_steps(path, 0, 1, 3);
  const std::string whole = read_file(path);
  const size_t third = whole.rfind('\n', whole.size() - 2) + 1;
  for (const size_t size : {third + 1, third + 20, whole.size() - 1}) {
    CAPTURE(size);
    atomic_write(path, whole.substr(0, size));
    jsonl_writer_test_detail::write_steps(path, 2, 3, 3);
    CHECK(read_file(path) == whole);
  }
}

TEST_CASE("a line before the checkpoint that is no metrics object is named", "[jsonl_writer]") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/metrics.jsonl";
  const std::string first = to_json_line(jsonl_writer_test_detail::record_at(1)) + "\n";
  for (const std::string bad : {"garbage", "[1, 2]", "{\"loss\": 3}", "{\"step\": \"2\"}", ""}) {
    CAPTURE(bad);
    const std::string content =
        first + bad + "\n" + to_json_line(jsonl_writer_test_detail::record_at(3)) + "\n";
    atomic_write(path, content);
    CHECK(jsonl_writer_test_detail::data_error(path, 3).find(path + ":2: expected a metrics object") == 0);
    CHECK(read_file(path) == content);
  }
  atomic_write(path, first + first);
  CHECK(jsonl_writer_test_detail::data_error(path, 3).find(path + ":2: expected a step above 1, got 1") == 0);
}

TEST_CASE("lines longer than a reading block are found", "[jsonl_writer]") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/metrics.jsonl";
  const std::string filler(3 << 20, 'x');
  const auto line = [&](int step) {
    return "{\"step\":" + std::to_string(step) + ",\"x\":\"" + filler + "\"}\n";
  };
  atomic_write(path, line(1) + line(2) + line(3));
  JsonlWriter writer(path, 2);
  CHECK(read_file(path) == line(1) + line(2));
}

}  // namespace osdn::metrics::test
