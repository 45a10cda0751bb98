#include "metrics/throughput.h"

#include <fmt/format.h>

#include <cmath>

namespace osdn::metrics {
namespace {

// "12,345"
std::string grouped(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3)
    digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

// "1.0e-3": fmt writes two digits of exponent at least.
std::string scientific(double value) {
  std::string text = fmt::format("{:.1e}", value);
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos && text[exponent + 2] == '0') text.erase(exponent + 2, 1);
  return text;
}

void add_part(std::string& text, const std::string& part) {
  if (!text.empty()) text += "  ";
  text += part;
}

}  // namespace

double model_flops_utilization(double flops_per_token, double tokens_per_second_per_gpu) {
  return flops_per_token * tokens_per_second_per_gpu / kHopperPeakFlops;
}

std::string summary(const StepRecord& record) {
  std::string text;
  add_part(text, std::isfinite(record.loss) ? fmt::format("loss {:.3f}", record.loss) : "loss not finite");
  if (record.skipped) add_part(text, "step skipped");
  if (record.validation) add_part(text, fmt::format("validation {:.3f}", record.validation->loss));
  if (record.residual && std::isfinite(record.residual->q_geo))
    add_part(text, fmt::format("q_geo {:.3f}", record.residual->q_geo));
  // In this order, since a narrow terminal has no room for the last ones.
  if (record.tokens_per_second > 0) add_part(text, grouped(record.tokens_per_second) + " tokens/s");
  add_part(text, std::isfinite(record.grad_norm) ? fmt::format("grad {:.2f}", record.grad_norm)
                                                 : "grad not finite");
  add_part(text, "lr " + scientific(record.learning_rate));
  return text;
}

}  // namespace osdn::metrics
