// Communicators of more than one process, over c10d.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "dist/communicator.h"

namespace osdn::dist::detail {

/// Numbers of float32 that GPUs add up over NCCL before anything depends on it: 64 MiB.
constexpr int64_t kFirstSum = int64_t{16} << 20;

/// See make_communicator, whose contract this is for worlds of more than one.
std::unique_ptr<Communicator> make_c10d_communicator(const LaunchEnvironment& launched, at::Device device,
                                                     std::chrono::seconds timeout,
                                                     int64_t first_sum = kFirstSum);

}  // namespace osdn::dist::detail
