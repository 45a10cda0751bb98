// Which implementation an op takes: its own loops where they are faster than ATen, ATen everywhere else.
#pragma once

#include "tensor/fwd.h"

namespace osdn::ops {

/// float32 and float64 on CPU; bf16 there serves tests only and takes the way of CUDA.
inline bool uses_loops(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() != at::kBFloat16;
}

}  // namespace osdn::ops
