// What both passes of the scan's launchers share: from the key size to the instantiation.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "base/cuda.h"
#include "kernels/precond_scan.h"

namespace osdn::kernels {

/// Calls `launch(std::integral_constant<int, Parts>, number of chains)` with the fewest channels a lane that
/// hold K.
template <typename Launch>
void launch_by_key_size(const PrecondScanShape& shape, const Launch& launch) {
  const auto chains = static_cast<unsigned>(shape.num_sequences * shape.num_heads);
  if (chains == 0 || shape.key_size == 0) return;
  if (shape.key_size <= 32)
    launch(std::integral_constant<int, 1>{}, chains);
  else if (shape.key_size <= 64)
    launch(std::integral_constant<int, 2>{}, chains);
  else if (shape.key_size <= 128)
    launch(std::integral_constant<int, 4>{}, chains);
  else
    launch(std::integral_constant<int, 8>{}, chains);
  OSDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace osdn::kernels
