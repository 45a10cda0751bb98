// The gradient of the initial d (docs/ops/precond_scan.md, eq. 12): a warp a row of 32 channels, eight rows
// at a time, added up in a fixed order that does not depend on how many rows there are. Memory-bound. Any
// architecture.
#include "kernels/common/launch.h"
#include "kernels/precond_scan.h"

namespace osdn::kernels {
namespace precond_scan_initial_detail {
namespace {

constexpr int kColumns = 32;
constexpr int kRows = 8;

__global__ void __launch_bounds__(kColumns* kRows)
    initial_gradient_kernel(const __grid_constant__ PrecondScanInitialArgs args) {
  __shared__ float sums[kRows][kColumns];
  const int row = static_cast<int>(threadIdx.x) / kColumns;
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kColumns + column;
  float sum = 0.0f;
  if (channel < args.num_channels) {
#pragma unroll 4
    for (int64_t sequence = row; sequence < args.num_sequences; sequence += kRows)
      sum += args.d_initial[sequence * args.num_channels + channel];
  }
  sums[row][column] = sum;
  __syncthreads();
  if (row != 0 || channel >= args.num_channels) return;
  for (int i = 1; i < kRows; ++i) sum += sums[i][column];
  const float initial = args.initial[channel];
  const bool outside = args.clamp && (initial < args.box_min || initial > args.box_max);
  args.sum[channel] = outside ? 0.0f : sum;
}

}  // namespace
}  // namespace precond_scan_initial_detail

void launch(const PrecondScanInitialArgs& args, CUstream_st* stream) {
  namespace detail = precond_scan_initial_detail;
  const int64_t blocks = (args.num_channels + detail::kColumns - 1) / detail::kColumns;
  if (blocks == 0) return;
  launch_kernel(detail::initial_gradient_kernel, static_cast<unsigned>(blocks),
                detail::kColumns * detail::kRows, 0, args, stream);
}

}  // namespace osdn::kernels
