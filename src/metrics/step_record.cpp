#include "metrics/step_record.h"

#include <cmath>

#include "base/json.h"
#include "metrics/detail/residual_names.h"

namespace osdn::metrics {

std::string to_json_line(const StepRecord& record) {
  Json line;
  line["step"] = record.step;
  line["tokens"] = record.tokens;
  line["epoch"] = record.epoch;
  line["loss"] = record.loss;
  line["perplexity"] = std::exp(record.loss);
  line["learning_rate"] = record.learning_rate;
  line["grad_norm"] = record.grad_norm;
  line["clipped"] = record.clipped;
  line["skipped"] = record.skipped;
  line["skipped_total"] = record.skipped_total;
  line["tokens_per_second"] = record.tokens_per_second;
  line["tokens_per_second_per_gpu"] = record.tokens_per_second_per_gpu;
  line["mfu"] = record.mfu;
  line["gemm_utilization"] = record.gemm_utilization;
  line["step_milliseconds"] = record.step_milliseconds;
  line["data_wait_milliseconds"] = record.data_wait_milliseconds;
  line["memory_gib"] = record.memory_gib;
  if (record.residual) {
    for (const detail::NamedResidual& field : detail::kResidualNames)
      line[field.name] = (*record.residual).*field.value;
  }
  if (!record.residual_layers.empty()) {
    for (const detail::NamedResidual& field : detail::kResidualNames) {
      Json values = Json::array();
      for (const ResidualFields& layer : record.residual_layers) values.push_back(layer.*field.value);
      line["layers"][field.name] = std::move(values);
    }
  }
  if (record.validation) {
    line["validation_loss"] = record.validation->loss;
    line["validation_perplexity"] = record.validation->perplexity;
    line["validation_bits_per_byte"] = record.validation->bits_per_byte;
  }
  // The JSON library prints doubles so that they read back bit-exactly, and null for what is not finite.
  return line.dump();
}

}  // namespace osdn::metrics
