// The global gradient norm and its clipping factor.
#pragma once

#include <string>

#include "optim/parameter_arena.h"

namespace osdn::optim {

/// Euclidean norm of all gradients, accumulated in float64 (values near 1e30 do not overflow), in a fixed
/// order: the same bits with any number of threads. Blocks for the device.
double gradient_norm(const ParameterArena& arena);

/// Factor that brings a gradient of this norm to `max_norm`; 1 when it is within. `max_norm` <= 0: never
/// clips.
double clip_factor(double norm, double max_norm);

/// Whether an update by a gradient of this (clipped) norm is safe: finite, and so small that AdamW's second
/// moments, its squares in fp32, are finite too. Beyond it a weight would never move again.
bool is_usable_norm(double norm);

/// Name of the first parameter, in arena order, whose gradient is not finite; empty when all are.
std::string first_nonfinite(const ParameterArena& arena);

}  // namespace osdn::optim
