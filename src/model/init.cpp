#include "model/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <thread>
#include <utility>
#include <vector>

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

/// Uniform in (0, 1), both ends excluded.
double open_uniform(uint64_t key, uint64_t counter) {
  return (static_cast<double>(mix(key ^ mix(counter)) >> 11) + 0.5) * 0x1p-53;
}

// The decay rates and step sizes of gates: a number a head or channel, so one thread will do.
void fill_from_uniform(const ParameterSpec& spec, uint64_t key, at::Tensor& values) {
  constexpr double kSmallestStep = 1e-4;
  float* data = values.data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    const double u = open_uniform(key, static_cast<uint64_t>(i));
    if (spec.initializer == Initializer::kLogUniform) {
      data[i] = static_cast<float>(std::log(spec.low + u * (spec.scale - spec.low)));
    } else {
      const double step = std::max(
          std::exp(std::log(spec.low) + u * (std::log(spec.scale) - std::log(spec.low))), kSmallestStep);
      data[i] = static_cast<float>(step + std::log(-std::expm1(-step)));
    }
  }
}

/// Calls work(begin, end) for parts of [0, count) on as many threads as LibTorch uses. Threads of their own:
/// at::parallel_for is a plain loop in code that is compiled without OpenMP, and the normal numbers of a
/// model of 340M parameters take one thread ten seconds.
template <typename Work>
void on_all_cores(int64_t count, const Work& work) {
  constexpr int64_t kSmallestPart = 1 << 16;
  const int64_t parts =
      std::clamp<int64_t>(count / kSmallestPart, 1, std::max<int64_t>(1, at::get_num_threads()));
  std::vector<std::thread> threads;
  for (int64_t part = 1; part < parts; ++part)
    threads.emplace_back([&, part] { work(count * part / parts, count * (part + 1) / parts); });
  work(0, count / parts);
  for (std::thread& thread : threads) thread.join();
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
  if (spec.initializer != Initializer::kNormal) {
    fill_from_uniform(spec, key, values);
    return;
  }
  const auto scale = static_cast<float>(spec.scale);
  float* data = values.data_ptr<float>();
  const int64_t count = values.numel();
  on_all_cores((count + 1) / 2, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const auto [first, second] = normal_pair(key, static_cast<uint64_t>(pair));
      data[2 * pair] = scale * first;
      if (2 * pair + 1 < count) data[2 * pair + 1] = scale * second;
    }
  });
}

}  // namespace osdn::model
