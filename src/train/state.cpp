#include "train/state.h"

#include "base/error.h"

namespace osdn::train {

Json TrainState::to_json() const {
  return {{"step", step},
          {"updates", updates},
          {"samples_consumed", samples_consumed},
          {"tokens", tokens},
          {"skipped_total", skipped_total},
          {"skipped_in_row", skipped_in_row}};
}

TrainState TrainState::from_json(const Json& json) {
  const auto field = [&](const char* name) {
    if (!json.contains(name) || !is_json_integer(json[name]))
      throw DataError("state.json: {}: expected an integer, got {}", name,
                      json.contains(name) ? json[name].dump() : "nothing");
    return json_integer(json[name]);
  };
  return {.step = field("step"),
          .updates = field("updates"),
          .samples_consumed = field("samples_consumed"),
          .tokens = field("tokens"),
          .skipped_total = field("skipped_total"),
          .skipped_in_row = field("skipped_in_row")};
}

}  // namespace osdn::train
