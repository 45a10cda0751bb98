// kernels/common/count.cuh for a CPU.
#pragma once

namespace osdn::kernels {

inline void count_either(int& count, float x, float a, float b) { count += x == a || x == b ? 1 : 0; }

}  // namespace osdn::kernels
