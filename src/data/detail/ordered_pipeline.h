// Work on many cores with results in the order of the input: the calling thread produces items and consumes
// results, workers do the work between. What is under way is bounded in bytes, so memory does not grow with
// the input. The result does not depend on the number of workers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace osdn::data::detail {

/// Threads that take jobs. A job may split itself with for_each, in which idle threads help.
class WorkerPool {
 public:
  explicit WorkerPool(int64_t workers) {
    for (int64_t i = 0; i < workers; ++i) threads_.emplace_back([this] { run_worker(); });
  }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  /// Jobs that have not begun are dropped.
  ~WorkerPool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      jobs_.clear();
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  /// `job` must not throw.
  void submit(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_one();
  }

  /// act(0), ..., act(count - 1), here and on threads that have nothing else to do. Throws what one of them
  /// threw.
  void for_each(int64_t count, const std::function<void(int64_t)>& act) {
    if (count <= 0) return;
    const auto share = std::make_shared<Share>();
    share->count = count;
    share->act = &act;
    {
      const std::lock_guard lock(mutex_);
      shares_.push_back(share);
      changed_.notify_all();
    }
    std::unique_lock lock(mutex_);
    while (share->next < count) help(share.get(), &lock);
    finished_.wait(lock, [&] { return share->done == count; });
    if (share->failure) std::rethrow_exception(share->failure);
    if (stop_)
      throw std::runtime_error("the pool ends");  // with indices left out: nobody waits for the result
  }

 private:
  struct Share {
    int64_t count = 0;
    int64_t next = 0;  // index to be taken
    int64_t done = 0;
    const std::function<void(int64_t)>* act = nullptr;
    std::exception_ptr failure;
  };

  /// Takes one index, releasing the lock meanwhile.
  void help(Share* share, std::unique_lock<std::mutex>* lock) {
    const int64_t index = share->next++;
    if (share->next == share->count)
      for (auto entry = shares_.begin(); entry != shares_.end(); ++entry)
        if (entry->get() == share) {
          shares_.erase(entry);
          break;
        }
    const bool left_out = stop_ || share->failure;
    lock->unlock();
    std::exception_ptr failure;
    try {
      if (!left_out) (*share->act)(index);
    } catch (...) {
      failure = std::current_exception();
    }
    lock->lock();
    if (failure && !share->failure) share->failure = failure;
    if (++share->done == share->count) finished_.notify_all();
  }

  void run_worker() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || !shares_.empty() || !jobs_.empty(); });
      if (!shares_.empty()) {
        const std::shared_ptr<Share> share = shares_.front();
        help(share.get(), &lock);
        continue;
      }
      if (stop_) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable finished_;
  std::deque<std::function<void()>> jobs_;
  std::deque<std::shared_ptr<Share>> shares_;  // with indices left
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

template <typename Item, typename Result>
class OrderedPipeline {
 public:
  /// `limit_bytes`: of the items whose results have not been consumed, by `size_bytes`; one more item may be
  /// under way.
  struct Options {
    int64_t workers = 1;
    int64_t limit_bytes = 0;
    std::function<int64_t(const Item&)> size_bytes;
  };

  OrderedPipeline(Options options, std::function<Result(Item&&)> work)
      : options_(std::move(options)), work_(std::move(work)), pool_(options_.workers) {}

  /// Where `work` may split itself.
  WorkerPool& pool() { return pool_; }

  /// `produce` fills an item or returns false at the end. The first failure in input order is thrown, whether
  /// it comes from producing, working or consuming.
  void run(const std::function<bool(Item*)>& produce, const std::function<void(Result&&)>& consume) {
    std::deque<int64_t> sizes;  // of the items under way
    int64_t bytes = 0;          // their sum
    int64_t produced = 0;
    int64_t consumed = 0;
    bool ended = false;
    std::exception_ptr failure;
    while (!ended || consumed < produced) {
      if (!ended && (bytes < options_.limit_bytes || consumed == produced)) {
        auto item = std::make_shared<Item>();
        try {
          ended = !produce(item.get());
        } catch (...) {
          failure = std::current_exception();
          ended = true;
        }
        if (ended) continue;
        sizes.push_back(options_.size_bytes(*item));
        bytes += sizes.back();
        pool_.submit([this, item, number = produced++] { work(number, std::move(*item)); });
        continue;
      }
      consume(take(consumed++));
      bytes -= sizes.front();
      sizes.pop_front();
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  struct Outcome {
    std::optional<Result> result;
    std::exception_ptr failure;
  };

  void work(int64_t number, Item&& item) {
    Outcome outcome;
    try {
      outcome.result = work_(std::move(item));
    } catch (...) {
      outcome.failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    done_.emplace(number, std::move(outcome));
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

  Options options_;
  std::function<Result(Item&&)> work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Outcome> done_;
  WorkerPool pool_;  // last: its threads end before what they use
};

}  // namespace osdn::data::detail
