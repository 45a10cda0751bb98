#include "metrics/tensorboard_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>

#include "metrics/detail/crc32c.h"
#include "metrics/detail/protobuf.h"
#include "metrics/detail/residual_names.h"

namespace osdn::metrics {
namespace {

// Field numbers of tensorflow.Event, Summary, Summary.Value and SessionLog.
constexpr uint32_t kEventWallTime = 1;
constexpr uint32_t kEventStep = 2;
constexpr uint32_t kEventFileVersion = 3;
constexpr uint32_t kEventSummary = 5;
constexpr uint32_t kEventSessionLog = 7;
constexpr uint32_t kSummaryValue = 1;
constexpr uint32_t kValueTag = 1;
constexpr uint32_t kValueSimple = 2;
constexpr uint32_t kSessionStatus = 1;
constexpr uint64_t kSessionStart = 1;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

File create_event_file(const std::string& directory) {
  create_directories(directory);
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  const std::string stem = fmt::format("{}/events.out.tfevents.{:010}.{}.{}", directory,
                                       static_cast<int64_t>(wall_seconds()), host, ::getpid());
  std::string path = stem;
  for (int number = 1; std::filesystem::exists(path); ++number) path = fmt::format("{}.{}", stem, number);
  return File::create(path);
}

std::string begin_event(int64_t step) {
  std::string event;
  detail::append_double_field(event, kEventWallTime, wall_seconds());
  if (step != 0) detail::append_varint_field(event, kEventStep, static_cast<uint64_t>(step));
  return event;
}

// One write for the whole frame: a crash leaves at most one torn frame at the end, which readers ignore.
void write_frame(File& file, const std::string& event) {
  std::string length;
  detail::append_fixed64(length, event.size());
  std::string frame = length;
  detail::append_fixed32(frame, detail::masked_crc32c(length));
  frame += event;
  detail::append_fixed32(frame, detail::masked_crc32c(event));
  file.write(frame);
}

void add_scalar(std::string& summary, const std::string& tag, double value) {
  if (!std::isfinite(value)) return;
  std::string entry;
  detail::append_bytes_field(entry, kValueTag, tag);
  detail::append_float_field(entry, kValueSimple, static_cast<float>(value));
  detail::append_bytes_field(summary, kSummaryValue, entry);
}

std::string summary_of(const StepRecord& record) {
  std::string summary;
  add_scalar(summary, "train/loss", record.loss);
  add_scalar(summary, "train/perplexity", std::exp(record.loss));
  add_scalar(summary, "train/learning_rate", record.learning_rate);
  add_scalar(summary, "train/grad_norm", record.grad_norm);
  add_scalar(summary, "train/clipped", record.clipped ? 1 : 0);
  add_scalar(summary, "train/skipped", record.skipped ? 1 : 0);
  add_scalar(summary, "train/skipped_total", static_cast<double>(record.skipped_total));
  add_scalar(summary, "train/tokens", static_cast<double>(record.tokens));
  add_scalar(summary, "train/epoch", static_cast<double>(record.epoch));
  add_scalar(summary, "speed/tokens_per_second", record.tokens_per_second);
  add_scalar(summary, "speed/tokens_per_second_per_gpu", record.tokens_per_second_per_gpu);
  add_scalar(summary, "speed/mfu", record.mfu);
  add_scalar(summary, "speed/gemm_utilization", record.gemm_utilization);
  add_scalar(summary, "speed/step_milliseconds", record.step_milliseconds);
  add_scalar(summary, "speed/data_wait_milliseconds", record.data_wait_milliseconds);
  add_scalar(summary, "speed/memory_gib", record.memory_gib);
  for (const detail::NamedResidual& field : detail::kResidualNames) {
    if (record.residual)
      add_scalar(summary, fmt::format("residual/{}", field.name), (*record.residual).*field.value);
    for (size_t layer = 0; layer < record.residual_layers.size(); ++layer)
      add_scalar(summary, fmt::format("residual_{}/layer_{:02}", field.name, layer),
                 record.residual_layers[layer].*field.value);
  }
  if (record.validation) {
    add_scalar(summary, "validation/loss", record.validation->loss);
    add_scalar(summary, "validation/perplexity", record.validation->perplexity);
    add_scalar(summary, "validation/bits_per_byte", record.validation->bits_per_byte);
  }
  return summary;
}

}  // namespace

TensorboardWriter::TensorboardWriter(const std::string& directory) : file_(create_event_file(directory)) {
  std::string event = begin_event(0);
  detail::append_bytes_field(event, kEventFileVersion, "brain.Event:2");
  write_frame(file_, event);
}

void TensorboardWriter::append(const StepRecord& record) {
  if (!has_records_) {
    std::string status;
    detail::append_varint_field(status, kSessionStatus, kSessionStart);
    std::string event = begin_event(record.step);
    detail::append_bytes_field(event, kEventSessionLog, status);
    write_frame(file_, event);
    has_records_ = true;
  }
  std::string event = begin_event(record.step);
  detail::append_bytes_field(event, kEventSummary, summary_of(record));
  write_frame(file_, event);
}

void TensorboardWriter::sync() { file_.sync(); }

}  // namespace osdn::metrics
