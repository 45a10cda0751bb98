#include "dist/detail/c10d_communicator.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "dist/detail/backend.h"
#include "dist/detail/rendezvous.h"
#include "dist/detail/watchdog.h"
#include "tensor/device.h"
#include "tensor/device_mark.h"
#include "tensor/torch.h"

namespace osdn::dist::detail {
namespace c10d_communicator_detail {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// The reason without c10d's stack trace and file names.
std::string reason_of(const std::exception& failure) {
  const auto* error = dynamic_cast<const c10::Error*>(&failure);
  const std::string text = error ? error->what_without_backtrace() : failure.what();
  return text.substr(0, text.find('\n'));
}

class TcpBoard : public Board {
 public:
  explicit TcpBoard(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void post(const std::string& key, const std::string& value) override {
    guarded([&] { store_->set(name(key), std::vector<uint8_t>(value.begin(), value.end())); });
  }
  std::optional<std::string> read(const std::string& key) override {
    std::optional<std::string> found;
    guarded([&] {
      if (!store_->check({name(key)})) return;
      const std::vector<uint8_t> bytes = store_->get(name(key));
      found.emplace(bytes.begin(), bytes.end());
    });
    return found;
  }

 private:
  static std::string name(const std::string& key) { return "board/" + key; }

  template <typename Function>
  static void guarded(Function function) {
    try {
      function();
    } catch (const c10::Error& failure) {
      throw EnvironmentError("the job's meeting place is gone, and rank 0 or the launcher with it: {}",
                             reason_of(failure));
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

std::string short_name(const Collective& collective) {
  return fmt::format("{} of {}", collective_name(collective.kind), collective.what);
}

/// The collectives of a captured graph, in their order, and how many of them have ended in all replays so
/// far: the device counts, and writes it to memory of the host, which the watching thread may read while the
/// device hangs.
class Captured {
 public:
  /// Outside of any capture.
  explicit Captured(at::Device device)
      : count_(at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(device))),
        seen_(pinned_memory({1}, at::kInt).zero_()) {}

  /// Recorded on the current stream, which has waited for it: one more is done.
  void record_done(std::string name) {
    names_.push_back(std::move(name));
    count_.add_(1);
    seen_.copy_(count_, /*non_blocking=*/true);
  }
  bool empty() const { return names_.empty(); }
  /// The number of a replay that is queued now.
  uint32_t next_replay() { return replays_++; }
  /// The first collective of a replay that is not done.
  std::string present(uint32_t replay) const {
    const auto seen =
        static_cast<uint32_t>(*static_cast<const volatile int32_t*>(seen_.const_data_ptr<int32_t>()));
    const uint32_t done =
        seen - replay * static_cast<uint32_t>(names_.size());  // modulo 2^32, as the device counts
    return done < names_.size() ? names_[done] : "what follows " + names_.back();
  }

 private:
  std::vector<std::string> names_;
  at::Tensor count_;  // [1] int32
  at::Tensor seen_;   // [1] int32, pinned
  uint32_t replays_ = 0;
};

/// A collective in a graph.
class RecordedWork : public PendingCollective {
 public:
  RecordedWork(WorkPtr work, Captured& captured, std::string name)
      : work_(std::move(work)), captured_(captured), name_(std::move(name)) {}
  void wait() override {
    work_->wait();
    captured_.record_done(name_);
  }

 private:
  WorkPtr work_;
  Captured& captured_;
  std::string name_;
};

class StartedWork : public PendingCollective {
 public:
  StartedWork(WorkPtr work, at::Tensor range, std::string what, std::optional<at::Device> blocking)
      : work_(std::move(work)), range_(std::move(range)), what_(std::move(what)), blocking_(blocking) {}

  void wait() override {
    try {
      work_->wait();
    } catch (const std::exception& failure) {
      throw EnvironmentError("{}: {}", what_, reason_of(failure));
    }
    if (blocking_) synchronize(*blocking_);
  }

 private:
  WorkPtr work_;
  at::Tensor range_;  // must live until the work is done
  std::string what_;
  std::optional<at::Device> blocking_;  // of a barrier: for which the host waits too
};

class C10dCommunicator : public Communicator {
 public:
  C10dCommunicator(const LaunchEnvironment& launched, at::Device device, std::chrono::milliseconds timeout,
                   int64_t first_sum)
      : launched_(launched), device_(device), store_(meet(launched, timeout)) {
    const BackendRequest request{.store = store_, .launched = launched, .timeout = timeout};
    const std::string what = fmt::format("rank {} of {}: connecting the ranks over {}", launched.rank,
                                         launched.world_size, device.is_cpu() ? "Gloo" : "NCCL");
    if (!device.is_cpu()) claim_gpu();
    try {
      backend_ = device.is_cpu() ? make_gloo_backend(request) : make_nccl_backend(request);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& failure) {
      throw EnvironmentError("{}: {}", what, reason_of(failure));
    }
    if (!device.is_cpu())
      watchdog_.emplace(Watchdog::Options{.timeout = timeout,
                                          .end_waiting = [this] { end_waiting(); },
                                          .broken = [this] { return broken(); },
                                          .outlives_owner = true});
    token_ = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device));
    if (device.is_cpu()) return;
    try {
      try_links(timeout, first_sum);
    } catch (...) {
      backend_->abort();  // the destructor, which does it otherwise, is not called
      throw;
    }
  }

  ~C10dCommunicator() override {
    if (device_.is_cpu()) return;
    if (watchdog_->failure()) {
      watchdog_.reset();  // it has aborted the backend
      return;
    }
    // Shutting down in order waits for the others, who may be gone; aborting should wait for nobody.
    const auto closed = std::make_shared<std::atomic<bool>>(false);
    watchdog_->watch({.what = fmt::format("rank {} of {}: closing the connections", rank(), world_size()),
                      .finished = [closed] { return closed->load(); }});
    try {
      if (std::uncaught_exceptions() > 0)
        backend_->abort();
      else
        backend_->shutdown();
    } catch (const std::exception& failure) {
      log::warning("rank {}: closing the connections failed: {}", rank(), reason_of(failure));
    }
    closed->store(true);
    watchdog_.reset();
  }

  int64_t rank() const override { return launched_.rank; }
  int64_t world_size() const override { return launched_.world_size; }
  at::Device device() const override { return device_; }

  int64_t begin_recording() override {
    if (!device_.is_cpu()) captured_.push_back(std::make_unique<Captured>(device_));
    return static_cast<int64_t>(captured_.size()) - 1;
  }

  void watch_replay(int64_t recording) override {
    Captured& captured = *captured_.at(static_cast<size_t>(recording));
    if (captured.empty()) return;
    watchdog_->watch(
        {.what = place(),
         .finished =
             [mark = std::make_shared<DeviceMark>(), gpu = device_.index()] {
               use_gpu(gpu);
               return mark->reached();
             },
         .where = [&captured, replay = captured.next_replay()] { return captured.present(replay); }});
  }

  void record_done(const Collective& collective) override {
    OSDN_ASSERT(!captured_.empty(), "{}: recorded before begin_recording", describe(collective));
    captured_.back()->record_done(short_name(collective));
  }

  void check() override {
    if (!watchdog_) return;
    if (const auto failure = watchdog_->failure()) throw EnvironmentError("{}", *failure);
  }

  void abandon() override {
    if (!device_.is_cpu()) backend_->abort();
  }

  void fail_with(const std::function<void()>& release, const std::function<std::string()>& broken) override {
    const std::lock_guard lock(other_mutex_);
    release_other_ = release;
    other_broken_ = broken;
  }

  std::unique_ptr<Board> open_board() override { return std::make_unique<TcpBoard>(store_->clone()); }

 protected:
  std::unique_ptr<PendingCollective> launch(const Collective& collective) override {
    std::string what = describe(collective);
    const bool barrier = collective.kind == CollectiveKind::kBarrier;
    at::Tensor range = barrier ? token_ : collective.range;
    OSDN_ASSERT(range.device() == device_, "{}: a range on {}, expected it on {}", what, range.device().str(),
                device_.str());
    WorkPtr work;
    try {
      work = begin(collective, range);
    } catch (const std::exception& failure) {
      throw EnvironmentError("{}: {}", what, reason_of(failure));
    }
    if (watchdog_ && is_capturing()) {
      OSDN_ASSERT(!barrier, "{}: the host cannot wait while a graph is captured", what);
      OSDN_ASSERT(!captured_.empty(), "{}: recorded before begin_recording", what);
      return std::make_unique<RecordedWork>(std::move(work), *captured_.back(), short_name(collective));
    }
    if (watchdog_)
      watchdog_->watch({.what = what, .finished = [work, gpu = device_.index()] {
                          // The watching thread would otherwise wake up GPU 0 for every rank.
                          use_gpu(gpu);
                          return is_finished(*work);
                        }});
    return std::make_unique<StartedWork>(std::move(work), std::move(range), std::move(what),
                                         barrier ? std::optional(device_) : std::nullopt);
  }

 private:
  void end_waiting() {
    {
      const std::lock_guard lock(other_mutex_);
      if (release_other_) release_other_();
    }
    backend_->abort();
  }

  std::string broken() {
    const std::lock_guard lock(other_mutex_);
    return other_broken_ ? other_broken_() : "";
  }

  /// NCCL's own message for two ranks on one GPU names a bus address and no cure.
  void claim_gpu() {
    if (store_->add("claimed_" + gpu_identity(), 1) == 1) return;
    throw EnvironmentError(
        "rank {} wants device {}, {} visible: another rank of this job uses that GPU already ({} processes "
        "on "
        "this host); start at most one process a GPU",
        launched_.rank, launched_.local_rank, num_gpus(), launched_.local_world_size);
  }

  /// Sums of known values, small and large, before anything depends on them: links that are broken (direct
  /// access between GPUs under an IOMMU, a network interface that leads nowhere) hang or give nonsense, and
  /// do so at the first collective, which also connects the ranks.
  void try_links(std::chrono::milliseconds timeout, int64_t first_sum) {
    constexpr std::chrono::milliseconds kLimit = std::chrono::seconds(60);
    const std::string what = fmt::format(
        "rank {} of {}: first sums over NCCL, of 1 and {} KiB (NCCL_P2P_DISABLE=1 tells whether direct "
        "access between GPUs is broken, NCCL_SOCKET_IFNAME chooses the network, NCCL_DEBUG=INFO says more)",
        launched_.rank, launched_.world_size, first_sum / 256);
    const auto done = std::make_shared<std::atomic<bool>>(false);
    watchdog_->watch(
        {.what = what, .finished = [done] { return done->load(); }, .timeout = std::min(timeout, kLimit)});
    for (const int64_t size : {int64_t{256}, first_sum}) {
      at::Tensor values = at::full({size}, launched_.rank + 1.0, token_.options());  // [size]
      all_reduce_sum(values, "the first sums");
      const double expected = 0.5 * launched_.world_size * (launched_.world_size + 1.0);
      const bool right = to_host(values.eq(expected).all()).item<bool>();
      if (!right) throw EnvironmentError("{}: a sum of {} numbers is wrong", what, size);
    }
    done->store(true);
  }

  static bool is_finished(c10d::Work& work) {
    if (!work.isCompleted()) return false;
    if (const std::exception_ptr failure = work.exception()) std::rethrow_exception(failure);
    return true;
  }

  at::Tensor own_part(const at::Tensor& range) const {
    const int64_t part = range.numel() / world_size();
    return range.view({-1}).narrow(0, rank() * part, part);
  }

  WorkPtr reduce(at::Tensor& range, const c10d::ReduceOp& operation) {
    std::vector<at::Tensor> tensors = {range};
    c10d::AllreduceOptions options;
    options.reduceOp = operation;
    return backend_->allreduce(tensors, options);
  }

  WorkPtr begin(const Collective& collective, at::Tensor& range) {
    switch (collective.kind) {
      case CollectiveKind::kBarrier:
      case CollectiveKind::kAllReduceSum:
        return reduce(range, c10d::ReduceOp::SUM);
      case CollectiveKind::kAllReduceMax:
        return reduce(range, c10d::ReduceOp::MAX);
      case CollectiveKind::kBroadcast: {
        std::vector<at::Tensor> tensors = {range};
        c10d::BroadcastOptions options;
        options.rootRank = collective.root;
        return backend_->broadcast(tensors, options);
      }
      case CollectiveKind::kAllGather: {
        at::Tensor whole = range.view({-1});
        at::Tensor own = own_part(range);
        return backend_->_allgather_base(whole, own, {});
      }
      case CollectiveKind::kReduceScatter: {
        // c10d's Gloo reduces everything everywhere into a copy and keeps a part: done in place, it needs
        // none.
        if (device_.is_cpu()) return reduce(range, c10d::ReduceOp::SUM);
        at::Tensor whole = range.view({-1});
        at::Tensor own = own_part(range);
        return backend_->_reduce_scatter_base(own, whole, {});
      }
    }
    OSDN_ASSERT(false, "collective {}", static_cast<int>(collective.kind));
  }

  LaunchEnvironment launched_;
  at::Device device_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<std::unique_ptr<Captured>> captured_;  // by recording
  std::mutex other_mutex_;
  std::function<void()> release_other_;  // see fail_with()
  std::function<std::string()> other_broken_;
  std::optional<Watchdog> watchdog_;  // of NCCL; Gloo's waits end by themselves
  at::Tensor token_;                  // [1] what a barrier sums
};

}  // namespace c10d_communicator_detail

std::unique_ptr<Communicator> make_c10d_communicator(const LaunchEnvironment& launched, at::Device device,
                                                     std::chrono::seconds timeout, int64_t first_sum) {
  return std::make_unique<c10d_communicator_detail::C10dCommunicator>(launched, device, timeout, first_sum);
}

}  // namespace osdn::dist::detail
