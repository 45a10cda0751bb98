// What an exception of LibTorch means to the user.
#pragma once

#include <exception>

namespace osdn {

/// The memory for a tensor could not be had, on a GPU or on the CPU.
bool is_out_of_memory(const std::exception& failure);

}  // namespace osdn
