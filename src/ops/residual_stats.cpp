#include "ops/residual_stats.h"

#include <limits>
#include <vector>

#include "base/error.h"
#include "ops/detail/precond_scan.h"
#include "ops/detail/residual_terms.h"
#include "ops/detail/simd_math.h"
#include "ops/l2_norm.h"
#include "tensor/check.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace residual_stats_detail {

// Tokens whose terms one task adds: fixed, so that the bits do not depend on the number of threads.
constexpr int64_t kTokensPerTask = 256;

// k [N, H, K] normalised; beta [N, HV]
template <typename T>
at::Tensor plain_cpu(const at::Tensor& k, const at::Tensor& beta) {
  const int64_t N = k.size(0);
  const int64_t H = k.size(1);
  const int64_t K = k.size(2);
  const int64_t HV = beta.size(1);
  const T* keys = k.const_data_ptr<T>();      // [N, H, K]
  const T* betas = beta.const_data_ptr<T>();  // [N, HV]
  const int64_t tasks = (N + kTokensPerTask - 1) / kTokensPerTask;
  std::vector<ResidualTerms> parts(static_cast<size_t>(tasks));
  at::parallel_for(0, tasks, 1, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task)
      for (int64_t t = task * kTokensPerTask; t < std::min(N, (task + 1) * kTokensPerTask); ++t)
        for (int64_t head = 0; head < HV; ++head) {
          const T* key = keys + (t * H + head / (HV / H)) * K;
          const T strength =
              betas[t * HV + head] * simd::sum<T>(K, [key](int64_t i) { return key[i] * key[i]; });
          parts[static_cast<size_t>(task)].add_write(strength, strength, betas[t * HV + head]);
        }
  });
  ResidualTerms all;
  for (const ResidualTerms& part : parts) all.merge(part);
  return all.to_tensor();
}

}  // namespace residual_stats_detail

at::Tensor ResidualTerms::to_tensor() const {
  const at::Tensor result = at::empty({kNumResidualTerms}, at::kDouble);
  std::copy(terms_.begin(), terms_.end(), result.mutable_data_ptr<double>());
  return result;
}

at::Tensor residual_terms(const at::Tensor& strength, const at::Tensor& plain_strength,
                          const at::Tensor& beta, const at::Tensor& scale, double box_min, double box_max,
                          const at::Tensor& retention) {
  const auto options = beta.options().dtype(at::kDouble);
  const auto constant = [&](double value) { return at::full({}, value, options); };
  const auto ratio_of = [](const at::Tensor& x) { return (1 - x.to(at::kDouble)).square(); };
  const at::Tensor ratio = ratio_of(strength);              // [N, HV]
  const at::Tensor plain_ratio = ratio_of(plain_strength);  // [N, HV]
  const bool any = beta.numel() > 0;
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<at::Tensor> terms(kNumResidualTerms, constant(0));
  terms[kResidualCount] = constant(static_cast<double>(beta.numel()));
  terms[kResidualLogSum] = ratio.clamp_min(kResidualFloor).log().sum();
  terms[kResidualLogSumPlain] = plain_ratio.clamp_min(kResidualFloor).log().sum();
  terms[kResidualFloorCount] = (ratio <= kResidualFloor).sum().to(at::kDouble);
  terms[kResidualBetaSum] = beta.sum(at::kDouble);
  terms[kResidualStrengthMax] = any ? strength.max().to(at::kDouble) : constant(-inf);
  terms[kResidualScaleMin] = constant(inf);
  terms[kResidualScaleMax] = constant(-inf);
  if (scale.defined() && any) {
    // Compared in the dtype of the scan, where the bounds were rounded.
    const auto bound = [&](double value) { return at::full({}, value, scale.options()); };
    terms[kResidualScaleCount] = constant(static_cast<double>(scale.numel()));
    terms[kResidualScaleSum] = scale.sum(at::kDouble);
    terms[kResidualScaleMin] = scale.min().to(at::kDouble);
    terms[kResidualScaleMax] = scale.max().to(at::kDouble);
    terms[kResidualScaleAtBox] =
        ((scale == bound(box_min)) | (scale == bound(box_max))).sum().to(at::kDouble);
  }
  if (retention.defined()) {
    terms[kResidualRetentionCount] = constant(static_cast<double>(retention.numel()));
    terms[kResidualRetentionSum] = retention.sum(at::kDouble);
  }
  return at::stack(terms);
}

at::Tensor plain_residual_stats(const at::Tensor& k, const at::Tensor& beta, bool l2_normalize) {
  constexpr const char* kOp = "residual_stats";
  check_shape(kOp, "k", k, {-1, -1, -1});
  check_shape(kOp, "beta", beta, {k.size(0), -1});
  check_dtype(kOp, "beta", beta, {accumulation_type(k.scalar_type())});
  check_same_device(kOp, "beta", beta, k);
  const int64_t H = k.size(1);
  const int64_t HV = beta.size(1);
  if (H == 0 || HV % H != 0)
    throw UserError("{}: beta: expected a multiple of the {} key heads, got {}", kOp, H, HV);
  const at::NoGradGuard no_grad;
  if (precond_scan_detail::Problem::on_kernel_path(k)) return plain_residual_kernel(k, beta, l2_normalize);
  const at::Tensor unit =
      (l2_normalize ? l2_norm_forward(k).y : k.detach()).to(beta.scalar_type());  // [N, H, K]
  if (k.is_cpu())
    return beta.scalar_type() == at::kDouble
               ? residual_stats_detail::plain_cpu<double>(unit.contiguous(), beta.contiguous())
               : residual_stats_detail::plain_cpu<float>(unit.contiguous(), beta.contiguous());
  const at::Tensor strength = beta * unit.square().sum(-1).repeat_interleave(HV / H, 1);  // [N, HV]
  return residual_terms(strength, strength, beta, {}, 0, 0, {});
}

}  // namespace osdn::ops
