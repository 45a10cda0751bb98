// NCCL of the tests' GPU: collectives that streams do, that never end by themselves when a rank is missing,
// and that abort() ends. Ranks tell each other through the job's store where their memory lies.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "dist/detail/backend.h"
#include "tests/gpu_on_cpu/streams.h"
#include "tests/support/test.h"

namespace osdn::dist::detail {
namespace nccl_on_cpu {

class StreamWork : public c10d::Work {
 public:
  explicit StreamWork(gpu_on_cpu::Mark done) : done_(std::move(done)) {}
  bool isCompleted() override { return done_.event->reached(1); }
  std::exception_ptr exception() const override { return nullptr; }
  bool wait(std::chrono::milliseconds) override {
    done_.delay_current_stream();
    return true;
  }

 private:
  gpu_on_cpu::Mark done_;
};

/// Outlives the backend as long as a stream has something of it to do.
class Meeting {
 public:
  Meeting(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  void abort() { aborted_ = true; }

  /// On the stream: hands every rank's memory [bytes of `own`] to `combine`, then, once all have, runs
  /// `finish`.
  void meet(const at::Tensor& own, const std::function<void(const std::vector<const void*>&)>& combine,
            const std::function<void()>& finish) {
    const std::string name = "nccl/" + std::to_string(sequence_++) + "/";
    try {
      const std::string place = gpu_on_cpu::export_address(own.const_data_ptr());
      store_->set(name + std::to_string(rank_), std::vector<uint8_t>(place.begin(), place.end()));
      std::vector<const void*> addresses;
      std::vector<std::unique_ptr<void, void (*)(void*)>> mapped;
      for (int rank = 0; rank < size_; ++rank) {
        const std::string key = name + std::to_string(rank);
        if (!wait_until([&] { return store_->check({key}); })) return;
        const std::vector<uint8_t> bytes = store_->get(key);
        const auto [memory, address] = gpu_on_cpu::open_address(std::string(bytes.begin(), bytes.end()));
        mapped.emplace_back(memory, gpu_on_cpu::close_memory);
        addresses.push_back(address);
      }
      combine(addresses);
      store_->add(name + "read", 1);
      if (!wait_until([&] { return store_->add(name + "read", 0) == size_; })) return;
      finish();
    } catch (const std::exception&) {
      // As NCCL does when a rank is gone: nothing.
      wait_until([] { return false; });
    }
  }

 private:
  template <typename Condition>
  bool wait_until(Condition condition) const {
    while (!aborted_) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return false;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> aborted_{false};
};

class StreamBackend : public c10d::Backend {
 public:
  explicit StreamBackend(const BackendRequest& request)
      : Backend(request.launched.rank, request.launched.world_size),
        meeting_(std::make_shared<Meeting>(request.store, getRank(), getSize())) {}

  const std::string getBackendName() const override { return "nccl-on-cpu"; }
  void abort() override { meeting_->abort(); }
  void shutdown() override {}

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    const bool max = options.reduceOp == c10d::ReduceOp::MAX;
    return start(tensors.front(), tensors.front(), [max](const std::vector<at::Tensor>& terms) {
      at::Tensor result = terms.front().clone();
      for (size_t rank = 1; rank < terms.size(); ++rank)
        if (max)
          at::maximum_out(result, result, terms[rank]);
        else
          result += terms[rank];
      return result;
    });
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return start(
        tensors.front(), tensors.front(),
        [root = static_cast<size_t>(options.rootRank)](const auto& terms) { return terms[root].clone(); });
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& whole, at::Tensor& own,
                                                 const c10d::AllgatherOptions&) override {
    return start(own, whole, [](const std::vector<at::Tensor>& terms) { return at::cat(terms); });
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& own, at::Tensor& whole,
                                                      const c10d::ReduceScatterOptions&) override {
    return start(whole, own, [rank = getRank(), part = own.numel()](const std::vector<at::Tensor>& terms) {
      at::Tensor result = terms.front().narrow(0, rank * part, part).clone();
      for (size_t other = 1; other < terms.size(); ++other)
        result += terms[other].narrow(0, rank * part, part);
      return result;
    });
  }

 private:
  static at::Tensor on_cpu(const void* memory, const at::Tensor& like) {
    return at::from_blob(const_cast<void*>(memory), {like.numel()},
                         at::TensorOptions().dtype(like.scalar_type()));
  }

  c10::intrusive_ptr<c10d::Work> start(const at::Tensor& own, const at::Tensor& target,
                                       std::function<at::Tensor(const std::vector<at::Tensor>&)> combine) {
    const gpu_on_cpu::Mark ready;
    const gpu_on_cpu::OnStream on_stream(stream_);
    ready.delay_current_stream();
    stream_->queue([meeting = meeting_, own, target, combine = std::move(combine)](uint64_t) {
      at::Tensor result;
      meeting->meet(
          own,
          [&](const std::vector<const void*>& addresses) {
            std::vector<at::Tensor> terms;
            for (const void* address : addresses) terms.push_back(on_cpu(address, own));
            result = combine(terms);
          },
          [&] { on_cpu(target.data_ptr(), target).copy_(result); });
    });
    return c10::make_intrusive<StreamWork>(gpu_on_cpu::Mark());
  }

  std::shared_ptr<Meeting> meeting_;
  std::shared_ptr<gpu_on_cpu::Stream> stream_ = gpu_on_cpu::Stream::make();
};

}  // namespace nccl_on_cpu

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendRequest& request) {
  return c10::make_intrusive<nccl_on_cpu::StreamBackend>(request);
}

}  // namespace osdn::dist::detail
