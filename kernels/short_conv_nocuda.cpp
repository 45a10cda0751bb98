#include "base/error.h"
#include "kernels/short_conv.h"

namespace osdn::kernels {

void launch(const ShortConvForwardArgs&, CUstream_st*) {
  throw EnvironmentError("short_conv: this program was built without CUDA");
}

void launch(const ShortConvBackwardArgs&, CUstream_st*) {
  throw EnvironmentError("short_conv: this program was built without CUDA");
}

}  // namespace osdn::kernels
