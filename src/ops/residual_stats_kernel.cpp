// Residual statistics by the CUDA kernels (kernels/residual_stats.h): their arguments.
#include "kernels/residual_stats.h"
#include "ops/detail/precond_scan.h"
#include "ops/detail/residual_terms.h"
#include "ops/residual_stats.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops {

// The kernels merge terms by their positions.
static_assert(kernels::kResidualTerms == kNumResidualTerms);
static_assert(kResidualStrengthMax == 5 && kResidualScaleMin == 8 && kResidualScaleMax == 9);

at::Tensor merge_residual_parts(const at::Tensor& parts) {
  const at::Tensor terms = at::empty({kNumResidualTerms}, parts.options());
  launch(kernels::ResidualMergeArgs{.parts = parts.const_data_ptr<double>(),
                                    .num_parts = parts.size(0),
                                    .terms = terms.mutable_data_ptr<double>()},
         current_stream());
  return terms;
}

at::Tensor plain_residual_kernel(const at::Tensor& k, const at::Tensor& beta, bool l2_normalize) {
  const at::Tensor rows = precond_scan_detail::readable_rows(k);
  const at::Tensor betas = beta.contiguous();
  const at::Tensor parts = at::empty({kernels::plain_residual_parts(k.size(0)), kNumResidualTerms},
                                     beta.options().dtype(at::kDouble));
  launch(kernels::PlainResidualArgs{.k = rows.const_data_ptr(),
                                    .token_stride = rows.stride(0),
                                    .head_stride = rows.stride(1),
                                    .beta = betas.const_data_ptr<float>(),
                                    .num_tokens = k.size(0),
                                    .num_key_heads = static_cast<int>(k.size(1)),
                                    .num_value_heads = static_cast<int>(beta.size(1)),
                                    .key_size = static_cast<int>(k.size(2)),
                                    .bf16 = k.scalar_type() == at::kBFloat16,
                                    .normalize = l2_normalize,
                                    .parts = parts.mutable_data_ptr<double>()},
         current_stream());
  return merge_residual_parts(parts);
}

}  // namespace osdn::ops
