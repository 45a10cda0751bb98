// The global gradient norm and its clipping factor.
#pragma once

#include <string>

#include "optim/parameter_arena.h"

namespace osdn::optim {

/// Euclidean norm of all gradients, accumulated in float64 (values near 1e30 do not overflow), in a fixed
/// order: the same bits with any number of threads. Blocks for the device.
double gradient_norm(const ParameterArena& arena);

/// Sums of the squares of the gradients that this process owns, as gradient_norm takes them: [2] float64 on
/// the device, its own alone and those common to all ranks. Added up over the ranks, the common ones once,
/// they are the square of the global norm. Does not block.
at::Tensor gradient_squares(const ParameterArena& arena);

/// Factor that brings a gradient of this norm to `max_norm`; 1 when it is within. `max_norm` <= 0: never
/// clips.
double clip_factor(double norm, double max_norm);

/// Whether an update by a gradient of this (clipped) norm is safe: finite, and so small that AdamW's second
/// moments, its squares in fp32, are finite too. Beyond it a weight would never move again.
bool is_usable_norm(double norm);

/// Position in arena order of the first parameter whose gradient is not finite where this process owns it;
/// the number of parameters when all are.
int64_t first_nonfinite(const ParameterArena& arena);

}  // namespace osdn::optim
