// A GPU of the tests, on the CPU: what src/tensor asks of CUDA (device.h, device_mark.h, device_graph.h,
// peers.h) for tensors whose device is PrivateUse1, so that whatever is built on it runs on machines without
// a GPU. The files of this folder stand in for those of src/tensor when linked before them.
//
// A stream is a thread that does what is queued on it, one after the other, while the host goes on; nothing
// but an event orders two streams. A capture collects what is queued on the streams that have joined it, and
// a replay does it on streams of the graph's own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace osdn::gpu_on_cpu {

/// What tests ask of this process' GPU.
struct Behaviour {
  std::atomic<int> longest_delay{0};         // before every fourth operation, in microseconds, at random
  std::atomic<bool> exports_memory{true};    // else export_memory fails
  std::atomic<bool> reaches_others{true};    // else can_reach_gpu says no
  std::atomic<bool> corrupts_copies{false};  // copies between processes end with a wrong number
  std::atomic<int64_t> raised_twice{0};      // flags raised that nobody had taken down
};
Behaviour& behaviour();

/// The calling thread's.
int16_t& current_gpu();

/// A point of a stream. One that was recorded is come to at every replay, whose number it remembers.
class Event {
 public:
  void reach(uint64_t replay);
  void wait_for(uint64_t replay);
  bool reached(uint64_t replay) const { return reached_.load(std::memory_order_acquire) >= replay; }

 private:
  std::atomic<uint64_t> reached_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// Told the number of the replay; 1 where it is no part of a graph.
using Operation = std::function<void(uint64_t replay)>;

class Recording;

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  static std::shared_ptr<Stream> make();
  ~Stream();  // what is queued is done all the same
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// The calling thread's.
  static std::shared_ptr<Stream> current();
  static std::shared_ptr<Stream> exchange_current(std::shared_ptr<Stream> stream);

  /// Done after all that was queued here before; or recorded, where the calling thread captures.
  void queue(Operation operation);
  /// Not recorded.
  void queue_now(Operation operation);
  void synchronize();

 private:
  struct State;
  explicit Stream(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// With another current stream.
class OnStream {
 public:
  explicit OnStream(std::shared_ptr<Stream> stream) : before_(Stream::exchange_current(std::move(stream))) {}
  ~OnStream() { Stream::exchange_current(std::move(before_)); }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  std::shared_ptr<Stream> before_;
};

/// The present end of the current stream.
struct Mark {
  Mark();
  void delay_current_stream() const;

  std::shared_ptr<Event> event = std::make_shared<Event>();
  std::shared_ptr<Stream> stream = Stream::current();
  Recording* recorded_in = nullptr;
  size_t position = 0;  // of the stream's part of the recording
};

/// What a captured graph does.
class Recording {
 public:
  /// Of the calling thread; nullptr where it does not capture.
  static Recording* current();

  /// Captures on the current stream until finish(). Streams join by waiting for what is recorded here.
  void begin();
  /// Throws where a stream that joined was not waited for.
  void finish();
  void abandon();

  void replay();

  void join(const std::shared_ptr<Stream>& stream);
  size_t add(const std::shared_ptr<Stream>& stream, Operation operation);
  void waited_for(const Mark& mark, const std::shared_ptr<Stream>& by);

 private:
  struct Part {
    std::shared_ptr<Stream> captured;
    std::shared_ptr<Stream> own;  // of replays
    std::vector<Operation> operations;
    size_t waited_for = 0;
  };
  Part* part_of(const std::shared_ptr<Stream>& stream);

  std::vector<std::unique_ptr<Part>> parts_;  // that of the capturing stream first
  uint64_t replays_ = 0;
};

/// Waits for all streams of the process.
void synchronize_device();
/// What an operation failed with; empty while none has. All later ones are left out.
std::string failure();

// Memory of the GPU: of a file that other processes can open.

void* allocate(size_t bytes);
void free_memory(void* memory);
std::string export_address(const void* address);
/// Whole memory of another process, mapped for reading, and the address in it. Of this process: nullptr and
/// the address itself.
std::pair<void*, const void*> open_address(const std::string& exported);
void close_memory(void* mapped);

}  // namespace osdn::gpu_on_cpu
