// What moves the data between processes: c10d's NCCL and Gloo. Each is a file of its own that is built where
// its headers are, beside one that says they were not. For the .cpp of this layer alone: includes LibTorch.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dist/launch_environment.h"

namespace osdn::dist::detail {

struct BackendRequest {
  c10::intrusive_ptr<c10d::Store> store;  // of this job alone
  LaunchEnvironment launched;
  std::chrono::milliseconds timeout{0};
};

/// Over TCP between the addresses at which the processes reach launched.master_addr. EnvironmentError in a
/// build without Gloo.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendRequest& request);

/// On the current GPU. Sets what fixes the order of sums (algorithm, protocol, channels) unless the user did.
/// EnvironmentError in a build without NCCL.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendRequest& request);

}  // namespace osdn::dist::detail
