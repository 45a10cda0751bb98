#include "optim/clip.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/square_sum.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::optim {
namespace {

constexpr int64_t kNormBlock = 4096;

double square_sum_cpu(const float* data, int64_t count) {
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
  return total;
}

/// Scalar float64 on the device.
at::Tensor square_sum(const at::Tensor& gradients, const ParameterArena::Range& range) {
  if (gradients.device().is_cpu())
    return at::scalar_tensor(square_sum_cpu(gradients.data_ptr<float>() + range.begin, range.size()),
                             at::kDouble);
  const auto wide = gradients.options().dtype(at::kDouble);
  const at::Tensor partials = at::empty({kernels::kSquareSumPartials}, wide);
  at::Tensor sum = at::empty({}, wide);
  kernels::launch(kernels::SquareSumArgs{.values = gradients.const_data_ptr<float>() + range.begin,
                                         .num_values = range.size(),
                                         .partials = partials.mutable_data_ptr<double>(),
                                         .sum = sum.mutable_data_ptr<double>()},
                  current_stream());
  return sum;
}

}  // namespace

double gradient_norm(const ParameterArena& arena) {
  return std::sqrt(gradient_squares(arena).sum().item<double>());
}

at::Tensor gradient_squares(const ParameterArena& arena) {
  const auto scalar = at::TensorOptions().dtype(at::kDouble).device(arena.gradients().device());
  std::vector<at::Tensor> sums = {at::zeros({}, scalar), at::zeros({}, scalar)};
  for (const ParameterArena::OwnedRange& range : arena.owned())
    sums[range.common ? 1 : 0] += square_sum(arena.gradients(), range);
  return at::stack(sums);
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1.0;
}

bool is_usable_norm(double norm) {
  constexpr double kLargestNorm = 1e19;  // squared 1e38, below the largest float of 3.4e38
  return norm < kLargestNorm;            // false for NaN
}

int64_t first_nonfinite(const ParameterArena& arena) {
  const auto& slots = arena.slots();
  const auto is_finite = [&](const ParameterArena::Slot& slot, const ParameterArena::Range& range) {
    const int64_t begin = std::max(slot.offset, range.begin);
    const int64_t end = std::min(slot.offset + slot.spec.num_elements(), range.end);
    return begin >= end || at::isfinite(arena.gradients().narrow(0, begin, end - begin)).all().item<bool>();
  };
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].spec.trainable) continue;
    for (const ParameterArena::OwnedRange& range : arena.owned())
      if (!is_finite(slots[i], range)) return static_cast<int64_t>(i);
  }
  return static_cast<int64_t>(slots.size());
}

}  // namespace osdn::optim
