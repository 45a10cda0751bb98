#include "tests/gpu_on_cpu/streams.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <random>
#include <stdexcept>
#include <thread>

#include "tests/support/test.h"

namespace osdn::gpu_on_cpu {
namespace streams_detail {

std::mutex failure_mutex;
std::string first_failure;
std::atomic<bool> failed{false};
thread_local Recording* recording = nullptr;
thread_local std::shared_ptr<Stream> current_stream;

void fail(const std::string& reason) {
  const std::lock_guard lock(failure_mutex);
  if (!failed.exchange(true)) first_failure = reason;
}

}  // namespace streams_detail

Behaviour& behaviour() {
  static Behaviour instance;
  return instance;
}

int16_t& current_gpu() {
  static thread_local int16_t index = 0;
  return index;
}

std::string failure() {
  const std::lock_guard lock(streams_detail::failure_mutex);
  return streams_detail::first_failure;
}

void Event::reach(uint64_t replay) {
  {
    const std::lock_guard lock(mutex_);
    reached_.store(replay, std::memory_order_release);
  }
  changed_.notify_all();
}

void Event::wait_for(uint64_t replay) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached(replay); });
}

struct Stream::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Operation> queued;
  bool ends = false;

  void push(Operation operation) {
    {
      const std::lock_guard lock(mutex);
      queued.push_back(std::move(operation));
    }
    changed.notify_all();
  }

  void run() {
    at::set_num_threads(1);
    std::minstd_rand random(static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id())));
    for (;;) {
      Operation operation;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return ends || !queued.empty(); });
        if (queued.empty()) return;
        operation = std::move(queued.front());
        queued.pop_front();
      }
      const int longest = behaviour().longest_delay;
      if (longest > 0 && random() % 4 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(longest)));
      operation(1);
    }
  }
};

namespace streams_detail {

/// Of all streams that live, for synchronize_device().
struct Streams {
  std::mutex mutex;
  std::vector<std::weak_ptr<Stream>> all;
};
Streams& streams() {
  static Streams instance;
  return instance;
}

}  // namespace streams_detail

std::shared_ptr<Stream> Stream::make() {
  auto state = std::make_shared<State>();
  std::thread([state] { state->run(); }).detach();
  std::shared_ptr<Stream> stream(new Stream(std::move(state)));
  auto& streams = streams_detail::streams();
  const std::lock_guard lock(streams.mutex);
  streams.all.push_back(stream);
  return stream;
}

Stream::~Stream() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
  }
  state_->changed.notify_all();
}

std::shared_ptr<Stream> Stream::current() {
  auto& stream = streams_detail::current_stream;
  if (!stream) stream = make();
  return stream;
}

std::shared_ptr<Stream> Stream::exchange_current(std::shared_ptr<Stream> stream) {
  std::shared_ptr<Stream> before = current();
  streams_detail::current_stream = std::move(stream);
  return before;
}

void Stream::queue(Operation operation) {
  Operation guarded = [operation = std::move(operation)](uint64_t replay) {
    if (streams_detail::failed) return;
    try {
      operation(replay);
    } catch (const std::exception& reason) {
      streams_detail::fail(reason.what());
    }
  };
  if (Recording* recording = Recording::current())
    recording->add(shared_from_this(), std::move(guarded));
  else
    queue_now(std::move(guarded));
}

void Stream::queue_now(Operation operation) { state_->push(std::move(operation)); }

void Stream::synchronize() {
  if (Recording::current()) throw std::logic_error("the host waits for a stream while a graph is captured");
  const auto event = std::make_shared<Event>();
  queue_now([event](uint64_t replay) { event->reach(replay); });
  event->wait_for(1);
}

void synchronize_device() {
  std::vector<std::shared_ptr<Stream>> living;
  {
    auto& streams = streams_detail::streams();
    const std::lock_guard lock(streams.mutex);
    for (const auto& weak : streams.all)
      if (auto stream = weak.lock()) living.push_back(std::move(stream));
  }
  for (const auto& stream : living) stream->synchronize();
}

Mark::Mark() : recorded_in(Recording::current()) {
  Operation reach = [event = event](uint64_t replay) { event->reach(replay); };
  if (recorded_in)
    position = recorded_in->add(stream, std::move(reach));
  else
    stream->queue_now(std::move(reach));
}

void Mark::delay_current_stream() const {
  const std::shared_ptr<Stream> waits = Stream::current();
  Operation wait = [event = event](uint64_t replay) { event->wait_for(replay); };
  Recording* recording = Recording::current();
  if (recording != recorded_in)
    throw std::logic_error("an event of a capture is waited for outside of it, or the other way round");
  if (!recording) return waits->queue_now(std::move(wait));
  recording->join(waits);
  recording->waited_for(*this, waits);
  recording->add(waits, std::move(wait));
}

Recording* Recording::current() { return streams_detail::recording; }

void Recording::begin() {
  parts_.clear();
  join(Stream::current());
  streams_detail::recording = this;
}

void Recording::abandon() { streams_detail::recording = nullptr; }

void Recording::finish() {
  streams_detail::recording = nullptr;
  for (size_t part = 1; part < parts_.size(); ++part)
    if (parts_[part]->waited_for < parts_[part]->operations.size())
      throw std::logic_error("a capture ends while a stream that joined it was not waited for");
}

void Recording::join(const std::shared_ptr<Stream>& stream) {
  if (part_of(stream)) return;
  parts_.push_back(std::make_unique<Part>());
  parts_.back()->captured = stream;
}

Recording::Part* Recording::part_of(const std::shared_ptr<Stream>& stream) {
  for (const auto& part : parts_)
    if (part->captured == stream) return part.get();
  return nullptr;
}

size_t Recording::add(const std::shared_ptr<Stream>& stream, Operation operation) {
  Part* part = part_of(stream);
  if (!part) throw std::logic_error("work is queued on a stream that has not joined the capture");
  part->operations.push_back(std::move(operation));
  return part->operations.size();
}

void Recording::waited_for(const Mark& mark, const std::shared_ptr<Stream>& by) {
  if (by != parts_.front()->captured) return;
  Part* part = part_of(mark.stream);
  part->waited_for = std::max(part->waited_for, mark.position);
}

void Recording::replay() {
  const uint64_t number = ++replays_;
  const std::shared_ptr<Stream> launching = Stream::current();
  const Mark start;
  for (size_t i = 1; i < parts_.size(); ++i) {
    Part& part = *parts_[i];
    if (!part.own) part.own = Stream::make();
    part.own->queue_now([event = start.event](uint64_t) { event->wait_for(1); });
    for (const Operation& operation : part.operations)
      part.own->queue_now([operation, number](uint64_t) { operation(number); });
  }
  for (const Operation& operation : parts_.front()->operations)
    launching->queue_now([operation, number](uint64_t) { operation(number); });
}

}  // namespace osdn::gpu_on_cpu
