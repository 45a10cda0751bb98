// metrics.jsonl: one object a line, appended by one writer; a resumed run cuts off what came after its
// checkpoint.
#pragma once

#include <memory>
#include <string>

#include "base/fs.h"
#include "metrics/step_record.h"

namespace osdn::metrics {

class JsonlWriter {
 public:
  /// Opens or creates the file and drops every line whose step is above `last_step` (and a torn last line).
  /// Throws DataError naming the line when a line before that is not a metrics object.
  JsonlWriter(const std::string& path, int64_t last_step);
  void append(const StepRecord& record);
  /// Returns after all lines are on the medium: called before a checkpoint is renamed into place.
  /// EnvironmentError also when the file at the path is no longer the one that is written.
  void sync();

 private:
  File file_;
};

}  // namespace osdn::metrics
