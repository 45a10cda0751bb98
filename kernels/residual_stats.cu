// Residual statistics of writes with d = 1, and the merge of statistics of parts in their order
// (docs/ops/residual_stats.md).
#include "kernels/residual_stats.h"

#include <type_traits>

#include "kernels/common/launch.h"
#include "kernels/detail/precond_scan_chain.cuh"
#include "kernels/detail/residual_terms.cuh"

namespace osdn::kernels {
namespace {

constexpr int kPlainTokens = 16;  // of a warp at a time
constexpr int kPlainWarps = 8;
constexpr int kPartTokens = kPlainTokens * kPlainWarps;
constexpr int kMergeThreads = kResidualTerms * kWarpSize;

template <typename T, int P>
__global__ void __launch_bounds__(kPlainWarps* kWarpSize, 1)
    plain_residual_kernel(const __grid_constant__ PlainResidualArgs args) {
  __shared__ double parts[kPlainWarps][kResidualTerms];
  const int lane = scan_lane();
  const int warp = scan_warp();
  const int own = lane % kPlainTokens;  // the token whose numbers this lane works out
  if (lane < kResidualTerms) parts[warp][lane] = neutral_residual_term(lane);
  __syncwarp();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kPartTokens + warp * kPlainTokens;
  const int count = static_cast<int>(
      max(static_cast<int64_t>(0), min(args.num_tokens - begin, static_cast<int64_t>(kPlainTokens))));
  const int group = args.num_value_heads / args.num_key_heads;
  const bool active = lane * P < args.key_size;
  for (int head = 0; count > 0 && head < args.num_key_heads; ++head) {
    const T* source = static_cast<const T*>(args.k) + begin * args.token_stride + head * args.head_stride +
                      (active ? lane * P : 0);
    Row<T, P> key[kPlainTokens] = {};
#pragma unroll
    for (int token = 0; token < kPlainTokens; ++token)
      if (token < count && active) key[token] = load_row<T, P>(source + token * args.token_stride);
    float sums[kPlainTokens];
    const auto squares = [&](int token) {
      float values[P];
      key[token].unpack(values);
      sums[token] = 0.0f;
#pragma unroll
      for (int i = 0; i < P; ++i) sums[token] += values[i] * values[i];
    };
#pragma unroll
    for (int token = 0; token < kPlainTokens; ++token) squares(token);
    float plain = warp_sums<kPlainTokens>(sums);
    if (args.normalize) {
      const float rstd = 1.0f / sqrtf(plain + kUnitEpsilon);
#pragma unroll
      for (int token = 0; token < kPlainTokens; ++token) {
        key[token] = unit_key<T, P>(key[token], __shfl_sync(kFullWarp, rstd, token));
        squares(token);
      }
      plain = warp_sums<kPlainTokens>(sums);
    }
    LaneResiduals terms;
    if (lane < kPlainTokens && own < count)
      for (int member = 0; member < group; ++member) {
        const float beta = args.beta[(begin + own) * args.num_value_heads + head * group + member];
        terms.add_write(beta * plain, beta * plain, beta);
      }
    terms.merge_into(parts[warp], 0, 0);
  }
  __syncthreads();
  const int term = static_cast<int>(threadIdx.x);
  if (term >= kResidualTerms) return;
  double all = parts[0][term];
  for (int part = 1; part < kPlainWarps; ++part) all = merge_residual_term(term, all, parts[part][term]);
  args.parts[static_cast<int64_t>(blockIdx.x) * kResidualTerms + term] = all;
}

/// A warp a term.
__global__ void __launch_bounds__(kMergeThreads)
    residual_merge_kernel(const __grid_constant__ ResidualMergeArgs args) {
  const int term = scan_warp();
  double all = neutral_residual_term(term);
#pragma unroll 8
  for (int64_t part = scan_lane(); part < args.num_parts; part += kWarpSize)
    all = merge_residual_term(term, all, args.parts[part * kResidualTerms + term]);
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2)
    all = merge_residual_term(term, all, __shfl_xor_sync(kFullWarp, all, distance));
  if (scan_lane() == 0) args.terms[term] = all;
}

}  // namespace

int64_t plain_residual_parts(int64_t num_tokens) { return (num_tokens + kPartTokens - 1) / kPartTokens; }

void launch(const ResidualMergeArgs& args, CUstream_st* stream) {
  launch_kernel(residual_merge_kernel, 1, kMergeThreads, 0, args, stream);
}

void launch(const PlainResidualArgs& args, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(plain_residual_parts(args.num_tokens));
  if (blocks == 0) return;
  const auto by_size = [&](auto type) {
    using T = decltype(type);
    const auto with = [&](auto channels) {
      launch_kernel(plain_residual_kernel<T, decltype(channels)::value>, blocks, kPlainWarps * kWarpSize, 0,
                    args, stream);
    };
    switch (precond_scan_channels(args.key_size)) {
      case 1:
        return with(std::integral_constant<int, 1>{});
      case 2:
        return with(std::integral_constant<int, 2>{});
      case 4:
        return with(std::integral_constant<int, 4>{});
      default:
        return with(std::integral_constant<int, 8>{});
    }
  };
  if (args.bf16)
    by_size(__nv_bfloat16{});
  else
    by_size(float{});
}

}  // namespace osdn::kernels
