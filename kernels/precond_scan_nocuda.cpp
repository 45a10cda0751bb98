#include "base/error.h"
#include "kernels/precond_scan.h"

namespace osdn::kernels {

void launch(const PrecondScanForwardArgs&, CUstream_st*) {
  throw EnvironmentError("precond_scan: this program was built without CUDA");
}

void launch(const PrecondScanBackwardArgs&, CUstream_st*) {
  throw EnvironmentError("precond_scan: this program was built without CUDA");
}

void launch(const PrecondScanInitialArgs&, CUstream_st*) {
  throw EnvironmentError("precond_scan: this program was built without CUDA");
}

}  // namespace osdn::kernels
