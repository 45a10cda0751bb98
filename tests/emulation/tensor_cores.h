// Matrix products of a warp (mma.sync) and of a warpgroup (wgmma) on the CPU; fragments as in
// kernels/common/mma.cuh. The four warps of a group need nothing of each other but shared memory.
#pragma once

#include <cstdint>

namespace osdn::emulation {

enum class Format { kBf16, kFp16, kTf32 };

/// acc += a b, k = 16 (tf32: 8).
void mma(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Format format);

/// An operand in shared memory as its descriptor gives it, of 16-bit numbers: its rows or columns n against
/// k.
struct SharedOperand {
  uint64_t descriptor;
  bool transposed;
  Format format = Format::kBf16;
};

/// acc += a b, k = 16, for this lane's 4 sums in each of `blocks` blocks of 8 columns: once waited for.
void wgmma(float (*acc)[4], int blocks, const uint32_t (&a)[4], const SharedOperand& b);
void wgmma(float (*acc)[4], int blocks, const SharedOperand& a, const SharedOperand& b);
void wgmma_commit();
/// All but the last `pending` groups are over.
void wgmma_wait(int pending);
/// A new block has queued none.
void forget_products();

}  // namespace osdn::emulation
