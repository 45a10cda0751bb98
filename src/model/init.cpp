#include "model/init.h"

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/hash.h"
#include "tensor/torch.h"

namespace osdn::model {
namespace {

/// SplitMix64's finaliser: a bijection of 64-bit words with full avalanche.
uint64_t mix(uint64_t word) {
  word += 0x9e3779b97f4a7c15ULL;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
  return word ^ (word >> 31);
}

/// Two independent standard normal numbers of one counter (Box-Muller on two 32-bit halves).
std::pair<float, float> normal_pair(uint64_t key, uint64_t counter) {
  const uint64_t bits = mix(key ^ mix(counter));
  const double u = (static_cast<double>(bits >> 32) + 0.5) * 0x1p-32;
  const double angle = 2 * std::numbers::pi * (static_cast<double>(bits & 0xffffffffu) * 0x1p-32);
  const double radius = std::sqrt(-2 * std::log(u));
  return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

}  // namespace

void initialize(const ParameterSpec& spec, int64_t seed, at::Tensor values) {
  OSDN_ASSERT(values.is_contiguous() && values.device().is_cpu() && values.scalar_type() == at::kFloat,
              "{}: initialisation needs a contiguous fp32 CPU tensor", spec.name);
  if (spec.initializer == Initializer::kConstant) {
    values.fill_(spec.scale);
    return;
  }
  const uint64_t key = hash64(spec.name, static_cast<uint64_t>(seed));
  const auto scale = static_cast<float>(spec.scale);
  float* data = values.data_ptr<float>();
  const int64_t count = values.numel();
  at::parallel_for(0, (count + 1) / 2, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const auto [first, second] = normal_pair(key, static_cast<uint64_t>(pair));
      data[2 * pair] = scale * first;
      if (2 * pair + 1 < count) data[2 * pair + 1] = scale * second;
    }
  });
}

}  // namespace osdn::model
