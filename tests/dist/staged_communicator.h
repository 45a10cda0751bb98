// Collectives on GPU memory through the host and Gloo: for ranks of a test that share a GPU, which NCCL
// refuses.
#pragma once

#include <memory>
#include <utility>

#include "dist/communicator.h"
#include "tensor/device.h"
#include "tests/support/test.h"

namespace osdn::test {

class StagedCommunicator : public dist::Communicator {
 public:
  StagedCommunicator(const dist::LaunchEnvironment& launched, at::Device device, std::chrono::seconds timeout)
      : gloo_(dist::make_communicator(launched, at::kCPU, timeout)), device_(device) {}

  int64_t rank() const override { return gloo_->rank(); }
  int64_t world_size() const override { return gloo_->world_size(); }
  at::Device device() const override { return device_; }
  void set_step(int64_t step) override {
    Communicator::set_step(step);
    gloo_->set_step(step);
  }
  void check() override {}
  std::unique_ptr<dist::Board> open_board() override { return gloo_->open_board(); }

 protected:
  std::unique_ptr<dist::PendingCollective> launch(const dist::Collective& collective) override {
    struct Done : dist::PendingCollective {
      void wait() override {}
    };
    dist::Collective staged = collective;
    if (collective.range.defined()) staged.range = collective.range.cpu();
    synchronize(device_);
    gloo_->start(staged)->wait();
    if (collective.range.defined()) collective.range.copy_(staged.range);
    return std::make_unique<Done>();
  }

 private:
  std::unique_ptr<dist::Communicator> gloo_;
  at::Device device_;
};

}  // namespace osdn::test
