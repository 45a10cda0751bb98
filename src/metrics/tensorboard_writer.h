// TensorBoard event files: TFRecord framing with masked CRC-32C around Event protocol buffers, scalars only.
#pragma once

#include <memory>
#include <string>

#include "base/fs.h"
#include "metrics/step_record.h"

namespace osdn::metrics {

class TensorboardWriter {
 public:
  /// Creates events.out.tfevents.<time>.<host> in `directory` (made if absent).
  explicit TensorboardWriter(const std::string& directory);
  void append(const StepRecord& record);
  void sync();

 private:
  File file_;
};

}  // namespace osdn::metrics
