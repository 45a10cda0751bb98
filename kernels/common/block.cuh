// The shared memory that a launch asks for. tests/emulation has its own for a CPU.
#pragma once

namespace osdn::kernels {

/// The shared memory that a launch asks for, aligned to 16 bytes.
extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];

}  // namespace osdn::kernels
