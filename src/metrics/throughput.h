// Model FLOPs utilisation (docs/formats/metrics.md) and the one-line summary of a step.
#pragma once

#include <string>

#include "metrics/step_record.h"

namespace osdn::metrics {

/// Nominal dense bf16 peak of a Hopper GPU.
inline constexpr double kHopperPeakFlops = 989e12;

/// Model FLOPs of a token (forward and backward, recomputation not counted) times the rate of one GPU, over
/// the peak.
double model_flops_utilization(double flops_per_token, double tokens_per_second_per_gpu);

/// "loss 3.412  q_geo 0.301  grad 0.84  lr 1.0e-3  12,345 tokens/s"; fields that the record lacks are left
/// out.
std::string summary(const StepRecord& record);

}  // namespace osdn::metrics
