// Closing values and configuration differences of the runs of a report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/report_data.h"
#include "base/json.h"

namespace osdn::apps {

enum class Better { kLower, kHigher, kNeither };

struct ClosingValue {
  std::string label;
  std::string key;
  Better better = Better::kNeither;
  std::vector<double> values;  // one a run; NaN where it has none
};

/// Measurements that a closing residual value is the mean of.
inline constexpr size_t kTailMeasurements = 5;

/// Values that at least one run has, in the order of the table.
std::vector<ClosingValue> closing_values(const std::vector<ReportRun>& runs);

/// Index of the best run of a row, or -1 when nobody is better than all others.
int64_t best_of(const ClosingValue& row);

/// Steps that the closing training loss is the mean of.
size_t tail_length(const ReportRun& run);

/// Names of runs; two of the same name are told apart by their directories.
std::vector<std::string> display_names(const std::vector<ReportRun>& runs);

/// Rows {key, values: [one a run]} of what is not the same in every run: configuration keys, then what
/// environment.json tells about the machines.
Json configuration_differences(const std::vector<ReportRun>& runs);

/// Closing values side by side as text, one row a value, one column a run.
std::string report_table(const std::vector<ReportRun>& runs);

}  // namespace osdn::apps
