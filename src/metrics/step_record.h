// One line of metrics.jsonl (docs/formats/metrics.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "metrics/residual.h"

namespace osdn::metrics {

struct Validation {
  double loss = 0;
  double perplexity = 0;
  double bits_per_byte = 0;
};

struct StepRecord {
  int64_t step = 0;
  int64_t tokens = 0;  // consumed so far, all ranks
  int64_t epoch = 0;
  double loss = 0;  // mean over the target tokens of the global batch
  double learning_rate = 0;
  double grad_norm = 0;  // global, before clipping
  bool clipped = false;
  bool skipped = false;
  int64_t skipped_total = 0;
  double tokens_per_second = 0;  // all ranks
  double tokens_per_second_per_gpu = 0;
  double mfu = 0;               // of 989 TFLOP/s; 0 on CPU
  double gemm_utilization = 0;  // of the GEMM rate that `osdn doctor` measured; 0 where unmeasured
  double step_milliseconds = 0;
  double data_wait_milliseconds = 0;
  double memory_gib = 0;                        // peak device memory, or resident set on CPU
  std::optional<ResidualFields> residual;       // at residual steps
  std::vector<ResidualFields> residual_layers;  // one per delta layer
  std::optional<Validation> validation;
};

/// One JSON object without line break; numbers printed so that they read back bit-exactly; NaN and infinities
/// as null.
std::string to_json_line(const StepRecord& record);

}  // namespace osdn::metrics
