// Where a run stands: everything besides weights and moments that the next step depends on.
#pragma once

#include <cstdint>

#include "base/json.h"

namespace osdn::train {

struct TrainState {
  int64_t step = 0;              // steps done, skipped ones included
  int64_t updates = 0;           // AdamW updates made; skipped steps make none
  int64_t samples_consumed = 0;  // windows of all ranks: the position in the data
  int64_t tokens = 0;            // target tokens of all ranks
  int64_t skipped_total = 0;
  int64_t skipped_in_row = 0;

  Json to_json() const;
  /// Throws DataError naming a missing or mistyped field.
  static TrainState from_json(const Json& json);
};

}  // namespace osdn::train
