// kernels/common/early_start.cuh for a CPU, where kernels run one after the other.
#pragma once

namespace osdn::kernels {

inline void let_next_kernel_start() {}
inline void wait_for_kernel_before() {}

}  // namespace osdn::kernels
