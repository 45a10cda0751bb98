#include "optim/adamw.h"

#include <cmath>

#include "base/error.h"
#include "kernels/adamw.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::optim {
namespace {

void adamw_step_cpu(const kernels::AdamWArgs& args) {
  const int64_t num_blocks = args.num_elements / args.decay_block;
  at::parallel_for(0, num_blocks, 256, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const float decay = args.decay_blocks[block] ? 1.0f - args.learning_rate * args.weight_decay : 1.0f;
      for (int64_t i = block * args.decay_block; i < (block + 1) * args.decay_block; ++i) {
        const float g = args.gradients[i] * args.gradient_scale;
        const float m = args.beta1 * args.exp_avgs[i] + (1.0f - args.beta1) * g;
        const float v = args.beta2 * args.exp_avg_sqs[i] + (1.0f - args.beta2) * g * g;
        args.exp_avgs[i] = m;
        args.exp_avg_sqs[i] = v;
        const float denominator = std::sqrt(v) * args.inverse_sqrt_correction2 + args.eps;
        args.masters[i] =
            args.masters[i] * decay - args.learning_rate * args.inverse_correction1 * m / denominator;
      }
    }
  });
}

}  // namespace

void adamw_step(ParameterArena& arena, const AdamWOptions& options, double learning_rate, int64_t update,
                double gradient_scale) {
  for (const ParameterArena::OwnedRange& range : arena.owned())
    adamw_step(arena, range, options, learning_rate, update, gradient_scale);
}

void adamw_step(ParameterArena& arena, const ParameterArena::OwnedRange& range, const AdamWOptions& options,
                double learning_rate, int64_t update, double gradient_scale) {
  OSDN_ASSERT(update >= 1, "adamw_step: update {} is not positive", update);
  const bool bf16_copy =
      arena.compute_copy().defined() && arena.compute_copy().scalar_type() == at::kBFloat16;
  const kernels::AdamWArgs args{
      .masters = arena.masters().data_ptr<float>() + range.masters,
      .gradients = arena.gradients().data_ptr<float>() + range.begin,
      .exp_avgs = arena.exp_avgs().data_ptr<float>() + range.moments,
      .exp_avg_sqs = arena.exp_avg_sqs().data_ptr<float>() + range.moments,
      .compute_copy = bf16_copy ? arena.compute_copy().data_ptr<at::BFloat16>() + range.begin : nullptr,
      .decay_blocks = arena.decay_blocks().data_ptr<uint8_t>() + range.begin / ParameterArena::kBlock,
      .num_elements = range.size(),
      .decay_block = ParameterArena::kBlock,
      .learning_rate = static_cast<float>(learning_rate),
      .beta1 = static_cast<float>(options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .eps = static_cast<float>(options.eps),
      .weight_decay = static_cast<float>(options.weight_decay),
      .inverse_correction1 = static_cast<float>(1.0 / (1.0 - std::pow(options.beta1, update))),
      .inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(options.beta2, update))),
      .gradient_scale = static_cast<float>(gradient_scale)};
  if (arena.masters().is_cuda()) {
    kernels::launch(args, current_stream());
  } else {
    adamw_step_cpu(args);
    arena.refresh_compute_copy(range);
  }
}

}  // namespace osdn::optim
