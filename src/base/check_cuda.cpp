#include "base/cuda.h"
#include "base/error.h"

namespace osdn {

void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw CudaError(status, fmt::format("{}:{}: {} failed: {} ({})", file, line, call,
                                      cudaGetErrorString(status), cudaGetErrorName(status)));
}

}  // namespace osdn
