#include "base/error.h"
#include "kernels/residual_stats.h"

namespace osdn::kernels {

int64_t plain_residual_parts(int64_t) { return 0; }

void launch(const ResidualMergeArgs&, CUstream_st*) {
  throw EnvironmentError("residual_stats: this program was built without CUDA");
}

void launch(const PlainResidualArgs&, CUstream_st*) {
  throw EnvironmentError("residual_stats: this program was built without CUDA");
}

}  // namespace osdn::kernels
