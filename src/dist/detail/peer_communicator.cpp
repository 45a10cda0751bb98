#include "dist/detail/peer_communicator.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "dist/detail/peer_flags.h"
#include "dist/detail/watchdog.h"
#include "tensor/device.h"
#include "tensor/device_mark.h"
#include "tensor/peers.h"
#include "tensor/torch.h"

namespace osdn::dist::detail {
namespace peer_communicator_detail {

class StartedExchange : public PendingCollective {
 public:
  /// `recorded_by` counts it where it was recorded into a graph.
  StartedExchange(Collective collective, std::shared_ptr<DeviceMark> done, Communicator* recorded_by)
      : collective_(std::move(collective)), done_(std::move(done)), recorded_by_(recorded_by) {}
  void wait() override {
    done_->delay_current_stream();
    if (recorded_by_) recorded_by_->record_done(collective_);
  }

 private:
  Collective collective_;  // its range must live until the exchange is done
  std::shared_ptr<DeviceMark> done_;
  Communicator* recorded_by_;
};

class PeerCommunicator : public Communicator {
 public:
  PeerCommunicator(std::unique_ptr<Communicator> others, const PeerOptions& options)
      : others_(std::move(others)), options_(options) {}

  ~PeerCommunicator() override {
    if (flags_) close();
  }

  int64_t rank() const override { return others_->rank(); }
  int64_t world_size() const override { return others_->world_size(); }
  at::Device device() const override { return others_->device(); }
  bool is_connected() const override { return others_->is_connected(); }
  void set_step(int64_t step) override {
    Communicator::set_step(step);
    others_->set_step(step);
  }
  int64_t begin_recording() override { return others_->begin_recording(); }
  void watch_replay(int64_t recording) override { others_->watch_replay(recording); }
  std::unique_ptr<Board> open_board() override { return others_->open_board(); }

  void abandon() override {
    if (flags_) flags_->give_up();
    others_->abandon();
  }
  void fail_with(const std::function<void()>& release, const std::function<std::string()>& broken) override {
    others_->fail_with(release, broken);
  }
  void record_done(const Collective& collective) override { others_->record_done(collective); }

  void check() override {
    try {
      check_watchdogs();
      if (const std::string reason = broken(); !reason.empty()) {
        // What is not finished is named by whoever watches it. Where all is, its numbers may be anything.
        constexpr auto kTime = std::chrono::seconds(1);
        for (const auto start = std::chrono::steady_clock::now();
             std::chrono::steady_clock::now() - start < kTime; check_watchdogs())
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        throw EnvironmentError("{}: {}", place(), reason);
      }
    } catch (...) {
      if (flags_) flags_->give_up();  // what is queued comes to its end, whoever failed
      throw;
    }
  }

  bool share(const std::vector<at::Tensor>& arenas) override {
    std::string reason = flags_ ? "" : connect();
    const size_t before = arenas_.size();
    if (reason.empty()) reason = open(arenas);
    if (reason.empty()) {
      if (rank() == 0) log::info("gradients and weights go from GPU to GPU by their copy engines");
      return true;
    }
    arenas_.resize(before);
    if (rank() == 0) log::info("gradients and weights do not go by the copy engines of GPUs: {}", reason);
    return false;
  }

 protected:
  std::unique_ptr<PendingCollective> launch(const Collective& collective) override {
    const Arena* arena = arena_of(collective);
    if (!arena) return others_->start(collective);
    const DeviceMark ready;
    std::shared_ptr<DeviceMark> done;
    side_->run([&] {
      ready.delay_current_stream();
      exchange(collective, *arena);
      done = std::make_shared<DeviceMark>();
    });
    const bool recorded = is_capturing();
    if (!recorded)
      watchdog_->watch({.what = describe(collective), .finished = [done, gpu = device().index()] {
                          use_gpu(gpu);
                          return done->reached();
                        }});
    return std::make_unique<StartedExchange>(collective, done, recorded ? others_.get() : nullptr);
  }

 private:
  void check_watchdogs() {
    if (watchdog_)
      if (const auto failure = watchdog_->failure()) throw EnvironmentError("{}", *failure);
    others_->check();
  }

  /// Why nothing that comes from the others is to be trusted any more; empty where it is.
  std::string broken() const {
    const std::optional<int64_t> other = flags_ ? flags_->given_up_by() : std::nullopt;
    if (!other) return {};
    return fmt::format("rank {} has failed and exchanges nothing any more; its log says why", *other);
  }

  /// A tensor that all ranks have, equally large, and where it lies on the others.
  struct Arena {
    at::Tensor own;
    std::vector<std::unique_ptr<PeerMemory>> of_ranks;  // by rank; nothing for this one
  };
  /// Elements of a range, of which a rank sums or brings part `rank`.
  struct Part {
    int64_t begin = 0;
    int64_t size = 0;
  };

  // What ranks say to each other before anything is shared, and whether all can go on. Every step ends with
  // the same answer everywhere: the first reason against it, by rank, or nothing.

  /// A few bytes of every rank, by rank.
  std::vector<std::string> gather_texts(const std::string& own, const char* what) {
    constexpr int64_t kRow = 512;  // the length in two bytes, then the text
    OSDN_ASSERT(own.size() <= kRow - 2, "{}: {} bytes", what, own.size());
    at::Tensor rows = at::zeros({world_size(), kRow}, at::kByte);
    auto* row = rows.data_ptr<uint8_t>() + rank() * kRow;
    row[0] = static_cast<uint8_t>(own.size() % 256);
    row[1] = static_cast<uint8_t>(own.size() / 256);
    std::copy(own.begin(), own.end(), row + 2);
    rows = rows.to(device());
    others_->all_gather(rows, what);
    rows = others_->to_host(rows).contiguous();
    std::vector<std::string> texts;
    for (int64_t other = 0; other < world_size(); ++other) {
      const uint8_t* text = rows.data_ptr<uint8_t>() + other * kRow;
      texts.emplace_back(reinterpret_cast<const char*>(text + 2), text[0] + size_t{256} * text[1]);
    }
    return texts;
  }

  /// Runs `attempt` on every rank; where it throws or returns a reason, that is it.
  std::string agree(const std::function<std::string()>& attempt) {
    std::string own;
    try {
      own = attempt();
    } catch (const std::exception& failure) {
      own = failure.what();
    }
    const std::vector<std::string> reasons =
        gather_texts(own.substr(0, 300), "whether GPUs reach each other");
    for (size_t other = 0; other < reasons.size(); ++other)
      if (!reasons[other].empty()) return fmt::format("rank {}: {}", other, reasons[other]);
    return {};
  }

  std::string connect() {
    std::string reason = agree([] { return no_peers_reason(); });
    if (!reason.empty()) return reason;
    const std::vector<std::string> addresses = gather_texts(gpu_address(), "the places of the GPUs");
    const std::string name =
        others_->broadcast_text(rank() == 0 ? PeerFlags::new_name() : "", "the name of shared memory");
    std::unique_ptr<PeerFlags> flags;
    // Rank 0 makes it before the others look for it.
    for (const bool makes : {true, false}) {
      reason = agree([&]() -> std::string {
        if (makes == (rank() == 0)) flags = std::make_unique<PeerFlags>(name, rank(), world_size());
        return {};
      });
      if (!reason.empty()) return reason;
    }
    reason = agree([&]() -> std::string {
      for (const std::string& address : addresses)
        if (!can_reach_gpu(address)) return fmt::format("its GPU does not reach the one at {}", address);
      return {};
    });
    if (!reason.empty()) return reason;
    flags->remove_name();
    scratch_ = at::empty({options_.scratch}, at::TensorOptions().dtype(at::kFloat).device(device()));
    side_.emplace();
    flags_ = std::move(flags);
    // Whichever side fails, the other one is released too: freeing memory, or the first use of a kernel,
    // waits within the driver for all that is queued, and keeps other threads out of it.
    watchdog_.emplace(Watchdog::Options{.timeout = options_.timeout,
                                        .end_waiting = [this] { abandon(); },
                                        .broken = [this] { return broken(); },
                                        .outlives_owner = true});
    others_->fail_with([this] { flags_->give_up(); }, [this] { return broken(); });
    try_links();
    return {};
  }

  /// A sum of known values, through memory that is read as gradients will be: links that are broken give
  /// nonsense.
  void try_links() {
    constexpr int64_t kElements = int64_t{1} << 20;
    at::Tensor values = at::full({kElements}, static_cast<double>(rank() + 1), scratch_.options());
    if (!open({values}).empty()) return;  // as the arenas will be
    all_reduce_sum(values, "the first sum over copy engines");
    const double expected =
        0.5 * static_cast<double>(world_size()) * (static_cast<double>(world_size()) + 1.0);
    const bool right = to_host(values.eq(expected).all()).item<bool>();
    const std::string reason = agree([&] { return std::string(right ? "" : "a sum is wrong"); });
    if (!reason.empty())
      throw EnvironmentError(
          "rank {} of {}: a first sum of {} numbers over the copy engines of the GPUs is wrong ({}): direct "
          "access "
          "between them is broken; set distributed.exchange: nccl",
          rank(), world_size(), kElements, reason.substr(0, reason.find(':')));
    arenas_.pop_back();
  }

  std::string open(const std::vector<at::Tensor>& arenas) {
    for (const at::Tensor& own : arenas) {
      Arena arena;
      arena.own = own;
      std::string exported;
      std::string reason = agree([&]() -> std::string {
        OSDN_ASSERT(own.is_contiguous() && own.device() == device(), "shared memory must lie on {}",
                    device().str());
        exported = export_memory(own);
        return {};
      });
      if (!reason.empty()) return reason;
      const std::vector<std::string> of_ranks = gather_texts(exported, "where shared memory lies");
      reason = agree([&]() -> std::string {
        for (int64_t other = 0; other < world_size(); ++other)
          arena.of_ranks.push_back(
              other == rank() ? nullptr : std::make_unique<PeerMemory>(of_ranks[static_cast<size_t>(other)]));
        return {};
      });
      if (!reason.empty()) return reason;
      arenas_.push_back(std::move(arena));
    }
    return {};
  }

  const Arena* arena_of(const Collective& collective) const {
    const CollectiveKind kind = collective.kind;
    const at::Tensor& range = collective.range;
    const bool sums = kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllReduceSum;
    if (!sums && kind != CollectiveKind::kAllGather) return nullptr;
    if (sums && range.scalar_type() != at::kFloat) return nullptr;
    const auto* begin = static_cast<const char*>(range.const_data_ptr());
    for (const Arena& arena : arenas_) {
      const auto* first = static_cast<const char*>(arena.own.const_data_ptr());
      if (begin >= first && begin + range.nbytes() <= first + arena.own.nbytes()) return &arena;
    }
    return nullptr;
  }

  /// Of a range of n elements: equal parts where they are the ranks' own, else as equal as they can be.
  Part part_of(int64_t n, int64_t owner) const {
    const int64_t size = (n + world_size() - 1) / world_size();
    const int64_t begin = std::min(owner * size, n);
    return {.begin = begin, .size = std::min(size, n - begin)};
  }

  /// The others, each rank beginning with the next one, so that no GPU is asked by all at once.
  std::vector<int64_t> peers() const {
    std::vector<int64_t> order;
    for (int64_t step = 1; step < world_size(); ++step) order.push_back((rank() + step) % world_size());
    return order;
  }

  /// Queued on the current stream. When it is done here, no other rank reads this rank's range any more.
  void exchange(const Collective& collective, const Arena& arena) {
    at::Tensor range = collective.range.view({-1});
    const bool sums = collective.kind != CollectiveKind::kAllGather;
    flags_->raise(PeerFlags::Kind::kReady);
    if (sums) {
      for (const int64_t peer : peers()) flags_->await(PeerFlags::Kind::kReady, peer);
      sum_own_part(range, arena);
    }
    if (collective.kind == CollectiveKind::kAllReduceSum) flags_->raise(PeerFlags::Kind::kSummed);
    if (collective.kind != CollectiveKind::kReduceScatter) {
      for (const int64_t peer : peers()) {
        flags_->await(sums ? PeerFlags::Kind::kSummed : PeerFlags::Kind::kReady, peer);
        const Part part = part_of(range.numel(), peer);
        copy_from(peer, arena, range.narrow(0, part.begin, part.size),
                  range.narrow(0, part.begin, part.size));
      }
    }
    flags_->raise(PeerFlags::Kind::kDone);
    for (const int64_t peer : peers()) flags_->await(PeerFlags::Kind::kDone, peer);
  }

  /// Into `to` what lies where `place`, part of the arena here, lies on another rank.
  void copy_from(int64_t peer, const Arena& arena, const at::Tensor& to, const at::Tensor& place) {
    if (to.numel() == 0) return;
    const auto offset = static_cast<const char*>(place.const_data_ptr()) -
                        static_cast<const char*>(arena.own.const_data_ptr());
    const auto* memory = static_cast<const char*>(arena.of_ranks[static_cast<size_t>(peer)]->data());
    copy_memory(to.data_ptr(), memory + offset, to.nbytes());
  }

  /// Adds the terms of all ranks in their order, piece by piece of what the scratch holds.
  void sum_own_part(const at::Tensor& range, const Arena& arena) {
    const Part part = part_of(range.numel(), rank());
    const int64_t most = std::min(options_.piece, options_.scratch / (world_size() - 1));
    for (int64_t begin = part.begin; begin < part.begin + part.size; begin += most) {
      const int64_t size = std::min(most, part.begin + part.size - begin);
      at::Tensor own = range.narrow(0, begin, size);
      std::vector<at::Tensor> terms(static_cast<size_t>(world_size()), own);
      int64_t slot = 0;
      for (const int64_t peer : peers()) {
        at::Tensor& term = terms[static_cast<size_t>(peer)];
        term = scratch_.narrow(0, slot++ * most, size);
        copy_from(peer, arena, term, own);
      }
      // The last sum goes into `own`, which is a term itself: until then they gather in the first.
      at::Tensor sum = terms.front();
      for (int64_t next = 1; next < world_size(); ++next) {
        at::Tensor target = next >= rank() ? own : sum;
        at::add_out(target, sum, terms[static_cast<size_t>(next)]);
        sum = target;
      }
    }
  }

  /// Orderly, once the others have what they need; else at once.
  void close() {
    const auto orderly = [this] { return std::uncaught_exceptions() == 0 && !watchdog_->failure(); };
    try {
      if (!orderly()) abandon();
      std::vector<std::unique_ptr<DeviceMark>> ends;
      const auto mark = [&] { ends.push_back(std::make_unique<DeviceMark>()); };
      mark();
      side_->run(mark);
      const auto wait_while = [&](const std::function<bool()>& waits) {
        for (const auto& end : ends)
          while (!end->reached() && waits()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      };
      wait_while(orderly);
      if (!orderly()) abandon();
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      wait_while([&] { return std::chrono::steady_clock::now() < until; });
    } catch (const std::exception& failure) {
      log::warning("rank {}: ending the exchange between GPUs failed: {}", rank(), failure.what());
    }
    watchdog_.reset();
    others_->fail_with({}, {});
  }

  std::unique_ptr<Communicator> others_;
  const PeerOptions options_;
  std::unique_ptr<PeerFlags> flags_;  // once connected, as the following
  at::Tensor scratch_;                // [scratch] fp32
  std::optional<SideStream> side_;
  std::optional<Watchdog> watchdog_;
  std::vector<Arena> arenas_;
};

}  // namespace peer_communicator_detail

std::unique_ptr<Communicator> make_peer_communicator(std::unique_ptr<Communicator> others,
                                                     const PeerOptions& options) {
  return std::make_unique<peer_communicator_detail::PeerCommunicator>(std::move(others), options);
}

}  // namespace osdn::dist::detail
