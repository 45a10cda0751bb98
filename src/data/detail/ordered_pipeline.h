// Work on many cores with results in the order of the input: the calling thread produces items and consumes
// results, workers do the work between. A bounded number of items is under way, so memory does not grow with
// the input. The result does not depend on the number of workers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace osdn::data::detail {

template <typename Item, typename Result>
class OrderedPipeline {
 public:
  OrderedPipeline(int64_t workers, std::function<Result(Item&&)> work) : work_(std::move(work)) {
    for (int64_t i = 0; i < workers; ++i) threads_.emplace_back([this] { run_worker(); });
  }
  OrderedPipeline(const OrderedPipeline&) = delete;
  OrderedPipeline& operator=(const OrderedPipeline&) = delete;
  ~OrderedPipeline() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      waiting_.clear();
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  /// `produce` fills an item or returns false at the end. The first failure in input order is thrown, whether
  /// it comes from producing, working or consuming.
  void run(const std::function<bool(Item*)>& produce, const std::function<void(Result&&)>& consume) {
    const auto limit = static_cast<int64_t>(2 * threads_.size() + 2);
    int64_t produced = 0;
    int64_t consumed = 0;
    bool ended = false;
    std::exception_ptr failure;
    while (!ended || consumed < produced) {
      if (!ended && produced - consumed < limit) {
        Item item;
        try {
          ended = !produce(&item);
        } catch (...) {
          failure = std::current_exception();
          ended = true;
        }
        if (!ended) push(produced++, std::move(item));
        continue;
      }
      consume(take(consumed++));
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  struct Outcome {
    std::optional<Result> result;
    std::exception_ptr failure;
  };

  void push(int64_t number, Item&& item) {
    const std::lock_guard lock(mutex_);
    waiting_.emplace_back(number, std::move(item));
    changed_.notify_all();
  }

  Result take(int64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_.count(number) != 0; });
    Outcome outcome = std::move(done_.at(number));
    done_.erase(number);
    if (outcome.failure) std::rethrow_exception(outcome.failure);
    return std::move(*outcome.result);
  }

  void run_worker() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (stop_) return;
      auto [number, item] = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      Outcome outcome;
      try {
        outcome.result = work_(std::move(item));
      } catch (...) {
        outcome.failure = std::current_exception();
      }
      lock.lock();
      done_.emplace(number, std::move(outcome));
      changed_.notify_all();
    }
  }

  std::function<Result(Item&&)> work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, Item>> waiting_;
  std::map<int64_t, Outcome> done_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace osdn::data::detail
