// The softmax steps of the loss by the CUDA kernel (kernels/linear_cross_entropy.h): its arguments.
#include "kernels/linear_cross_entropy.h"

#include "ops/detail/linear_cross_entropy_paths.h"
#include "ops/linear_cross_entropy.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::linear_cross_entropy_detail {

bool on_kernel_path(const at::Tensor& x) {
  return x.is_cuda() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat) &&
         compute_capability() >= 80;
}

at::Tensor padded_logits(const at::Tensor& x, const at::Tensor& weight) {
  const int64_t vector = 16 / x.element_size();
  const int64_t vocabulary = weight.size(0);
  const int64_t stride = (vocabulary + vector - 1) / vector * vector;
  at::Tensor logits = at::empty({x.size(0), stride}, x.options()).narrow(1, 0, vocabulary);
  at::mm_out(logits, x, weight.t());
  return logits;
}

void softmax_kernel(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& loss,
                    bool gradient, const at::Tensor& scale) {
  launch(kernels::LinearCrossEntropyArgs{.logits = logits.data_ptr(),
                                         .row_stride = logits.stride(0),
                                         .targets = targets.const_data_ptr<int64_t>(),
                                         .ignored = kIgnoreTarget,
                                         .scale = scale.defined() ? scale.const_data_ptr<float>() : nullptr,
                                         .loss = loss.defined() ? loss.mutable_data_ptr<float>() : nullptr,
                                         .gradient = gradient,
                                         .num_rows = logits.size(0),
                                         .vocabulary = logits.size(1),
                                         .bf16 = logits.scalar_type() == at::kBFloat16},
         current_stream());
}

}  // namespace osdn::ops::linear_cross_entropy_detail
