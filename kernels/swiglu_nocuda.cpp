#include "base/error.h"
#include "kernels/swiglu.h"

namespace osdn::kernels {

void launch(const SwigluForwardArgs&, CUstream_st*) {
  throw EnvironmentError("swiglu: this program was built without CUDA");
}

void launch(const SwigluBackwardArgs&, CUstream_st*) {
  throw EnvironmentError("swiglu: this program was built without CUDA");
}

}  // namespace osdn::kernels
