// TensorBoard event files: TFRecord framing with masked CRC-32C around Event protocol buffers, scalars only.
#pragma once

#include <memory>
#include <string>

#include "base/fs.h"
#include "metrics/step_record.h"

namespace osdn::metrics {

class TensorboardWriter {
 public:
  /// Creates events.out.tfevents.<time>.<host>.<process>[.<number>] in `directory` (made if absent). Never
  /// touches the files of earlier starts: the first record tells TensorBoard to forget what they hold from
  /// its step on.
  explicit TensorboardWriter(const std::string& directory);
  void append(const StepRecord& record);
  void sync();

 private:
  File file_;
  bool has_records_ = false;
};

}  // namespace osdn::metrics
