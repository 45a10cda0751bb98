#include "dist/detail/peer_flags.h"

#include <chrono>
#include <vector>

namespace osdn::dist::detail {

PeerFlags::PeerFlags(const std::string& name, int64_t rank, int64_t world_size)
    : rank_(rank),
      world_size_(world_size),
      page_(name, static_cast<size_t>(kKinds * world_size * world_size + 1) * sizeof(uint32_t),
            rank == 0 ? SharedPage::Role::kMaker : SharedPage::Role::kGuest),
      device_(flags(), page_.bytes()) {}

PeerFlags::~PeerFlags() {
  closing_ = true;
  if (giving_up_.joinable()) giving_up_.join();
}

void PeerFlags::raise(Kind kind) {
  std::vector<size_t> raised;
  for (int64_t to = 0; to < world_size_; ++to)
    if (to != rank_) raised.push_back(index(kind, rank_, to));
  device_.raise(raised);
}

void PeerFlags::await(Kind kind, int64_t from) { device_.await(index(kind, from, rank_)); }

void PeerFlags::give_up() {
  if (gave_up_.exchange(true)) return;
  uint32_t nobody = 0;
  __atomic_compare_exchange_n(first_to_give_up(), &nobody, static_cast<uint32_t>(rank_ + 1), false,
                              __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  // Again and again, for each wait takes its flag down and the next one may follow.
  giving_up_ = std::thread([this] {
    while (!closing_) {
      for (int64_t kind = 0; kind < kKinds; ++kind)
        for (int64_t from = 0; from < world_size_; ++from)
          __atomic_store_n(flags() + index(static_cast<Kind>(kind), from, rank_), 1u, __ATOMIC_RELEASE);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
}

std::optional<int64_t> PeerFlags::given_up_by() const {
  const auto first = static_cast<int64_t>(__atomic_load_n(first_to_give_up(), __ATOMIC_ACQUIRE)) - 1;
  if (first >= 0 && first != rank_) return first;
  return std::nullopt;
}

}  // namespace osdn::dist::detail
