// Time between two points of the current stream, by the GPU's clock.
#pragma once

#include <memory>

namespace osdn {

class DeviceTimer {
 public:
  DeviceTimer();
  ~DeviceTimer();
  DeviceTimer(DeviceTimer&&) noexcept;
  DeviceTimer& operator=(DeviceTimer&&) noexcept;

  /// Mark a point of the current stream; do not wait. InternalError in a build without CUDA.
  void start();
  void stop();
  /// Waits for the second point.
  double milliseconds();

 private:
  struct Events;
  std::unique_ptr<Events> events_;
};

}  // namespace osdn
