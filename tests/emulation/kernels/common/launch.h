// kernels/common/launch.h for a CPU: a device of compute capability 9.0 whose blocks run one after the other.
#pragma once

#include "tests/emulation/cuda_on_cpu.h"
#include "tests/emulation/race_check.h"

struct CUstream_st;

namespace osdn::kernels {

inline int shared_memory_limit() { return emulation::shared_limit; }
inline int multiprocessors() { return 132; }
inline bool has_warpgroups() { return true; }

template <typename Call>
void run_blocks(const void* kernel, dim3 grid, int threads, int bytes, const Call& call) {
  if (bytes > emulation::shared_limit)
    throw emulation::KernelFault("more shared memory than a block may have");
  emulation::begin_launch(kernel);
  blockDim = {static_cast<unsigned>(threads), 1, 1};
  gridDim = {grid.x, grid.y, grid.z};
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        std::memset(emulation::shared_memory, 0xff, emulation::kSharedBytes);  // NaN
        emulation::run_block(call, threads);
      }
}

template <typename Args>
void launch_kernel(void (*kernel)(Args), dim3 grid, int threads, int bytes, const Args& args, CUstream_st*) {
  run_blocks(reinterpret_cast<const void*>(kernel), grid, threads, bytes, [&] { kernel(args); });
}
template <typename Args>
void launch_early_kernel(void (*kernel)(Args), dim3 grid, int threads, int bytes, const Args& args,
                         CUstream_st* stream) {
  launch_kernel(kernel, grid, threads, bytes, args, stream);
}
template <typename Args>
void launch_kernel(void (*kernel)(Args, int), dim3 grid, int threads, int bytes, const Args& args, int more,
                   CUstream_st*) {
  run_blocks(reinterpret_cast<const void*>(kernel), grid, threads, bytes, [&] { kernel(args, more); });
}

}  // namespace osdn::kernels
