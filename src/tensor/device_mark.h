// A point of the current stream that the host may ask for again and again without waiting for it.
#pragma once

#include <memory>

namespace osdn {

/// Whether the current stream is being captured into a CUDA graph. False without a GPU.
bool is_capturing();

class DeviceMark {
 public:
  /// Marks the present end of the current stream. InternalError in a build without CUDA.
  DeviceMark();
  ~DeviceMark();
  DeviceMark(const DeviceMark&) = delete;
  DeviceMark& operator=(const DeviceMark&) = delete;

  /// Work queued on the current stream from here on comes after it. The host does not wait.
  void delay_current_stream() const;

  /// Whether the device has come to it; on any thread, also while another one captures a graph. Throws what
  /// made the device fail.
  bool reached() const;

 private:
  struct Event;
  std::unique_ptr<Event> event_;
};

}  // namespace osdn
