#include "optim/clip.h"

#include <cmath>
#include <vector>

#include "tensor/torch.h"

namespace osdn::optim {
namespace {

constexpr int64_t kNormBlock = 4096;

double gradient_norm_cpu(const at::Tensor& gradients) {
  const float* data = gradients.data_ptr<float>();
  const int64_t count = gradients.numel();
  std::vector<double> partial(static_cast<size_t>((count + kNormBlock - 1) / kNormBlock));
  at::parallel_for(0, static_cast<int64_t>(partial.size()), 16, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      double lanes[8] = {};
      const int64_t last = std::min(count, (block + 1) * kNormBlock);
      int64_t i = block * kNormBlock;
      for (; i + 8 <= last; i += 8)
        for (int lane = 0; lane < 8; ++lane)
          lanes[lane] += static_cast<double>(data[i + lane]) * data[i + lane];
      for (; i < last; ++i) lanes[0] += static_cast<double>(data[i]) * data[i];
      partial[static_cast<size_t>(block)] =
          ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    }
  });
  double total = 0;
  for (const double value : partial) total += value;
  return std::sqrt(total);
}

}  // namespace

double gradient_norm(const ParameterArena& arena) {
  if (arena.gradients().device().is_cpu()) return gradient_norm_cpu(arena.gradients());
  return at::linalg_vector_norm(arena.gradients(), 2, at::nullopt, false, at::kDouble).item<double>();
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1.0;
}

bool is_usable_norm(double norm) {
  constexpr double kLargestNorm = 1e19;  // squared 1e38, below the largest float of 3.4e38
  return norm < kLargestNorm;            // false for NaN
}

std::string first_nonfinite(const ParameterArena& arena) {
  for (const ParameterArena::Slot& slot : arena.slots())
    if (slot.spec.trainable && !at::isfinite(arena.gradient(slot.spec.name)).all().item<bool>())
      return slot.spec.name;
  return {};
}

}  // namespace osdn::optim
