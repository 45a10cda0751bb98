// Checking of CUDA calls, for .cu files and the few .cpp files that call the runtime. Light: no fmt, which
// nvcc chokes on.
#pragma once

#include <cuda_runtime_api.h>

namespace osdn {

/// Throws CudaError (base/error.h) unless `status` is success; clears the sticky error state first.
void check_cuda(cudaError_t status, const char* call, const char* file, int line);

}  // namespace osdn

#define OSDN_CUDA_CHECK(call) ::osdn::check_cuda((call), #call, __FILE__, __LINE__)
