// What ranks of one host tell each other's GPUs: one flag for each kind, from each rank to each other. A rank
// raises its flags to all; each of them waits for it and takes it down. Between two raisings of a flag its
// receiver always answers by another one, so one is enough.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "dist/detail/shared_page.h"
#include "tensor/peers.h"

namespace osdn::dist::detail {

class PeerFlags {
 public:
  enum class Kind : int64_t {
    kReady,   // what the rank brings lies there
    kSummed,  // so does its part of the sum
    kDone     // it reads nothing of the others' any more
  };

  /// Rank 0 makes the memory under a new name, then the others open it. EnvironmentError or CudaError where
  /// it cannot be shared.
  PeerFlags(const std::string& name, int64_t rank, int64_t world_size);
  ~PeerFlags();
  PeerFlags(const PeerFlags&) = delete;
  PeerFlags& operator=(const PeerFlags&) = delete;

  static std::string new_name() { return SharedPage::new_name(); }
  void remove_name() { page_.remove_name(); }

  // Both queued on the current stream.
  void raise(Kind kind);
  void await(Kind kind, int64_t from);

  /// From now on this rank's stream finds every flag raised that it waits for, and what it raises itself may
  /// mean nothing: the others are told before. On any thread.
  void give_up();
  /// The first rank that has given up, if it is another one. Asked after a flag was taken down, it is known
  /// if that flag meant nothing.
  std::optional<int64_t> given_up_by() const;

 private:
  static constexpr int64_t kKinds = 3;
  size_t index(Kind kind, int64_t from, int64_t to) const {
    return static_cast<size_t>((static_cast<int64_t>(kind) * world_size_ + to) * world_size_ + from);
  }
  uint32_t* flags() const { return static_cast<uint32_t*>(page_.data()); }
  /// Behind the flags: 1 + the first rank that has given up.
  uint32_t* first_to_give_up() const { return flags() + kKinds * world_size_ * world_size_; }

  int64_t rank_;
  int64_t world_size_;
  SharedPage page_;
  DeviceFlags device_;
  std::atomic<bool> gave_up_{false};
  std::atomic<bool> closing_{false};
  std::thread giving_up_;
};

}  // namespace osdn::dist::detail
