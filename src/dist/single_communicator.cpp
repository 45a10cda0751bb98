#include "dist/communicator.h"
#include "tensor/torch.h"

namespace osdn::dist {
namespace single_communicator_detail {

class Finished : public PendingCollective {
 public:
  void wait() override {}
};

/// Of one rank, every sum is its own term and every part its own whole.
class SingleCommunicator : public Communicator {
 public:
  explicit SingleCommunicator(at::Device device) : device_(device) {}
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  at::Device device() const override { return device_; }
  bool is_connected() const override { return false; }
  void check() override {}
  std::unique_ptr<Board> open_board() override { return nullptr; }

 protected:
  std::unique_ptr<PendingCollective> launch(const Collective& /*collective*/) override {
    return std::make_unique<Finished>();
  }

 private:
  at::Device device_;
};

}  // namespace single_communicator_detail

std::unique_ptr<Communicator> make_single_communicator(at::Device device) {
  return std::make_unique<single_communicator_detail::SingleCommunicator>(device);
}

}  // namespace osdn::dist
