#include "base/error.h"
#include "kernels/adamw.h"

namespace osdn::kernels {

void launch(const AdamWArgs&, CUstream_st*) {
  throw EnvironmentError("adamw: this program was built without CUDA");
}

}  // namespace osdn::kernels
