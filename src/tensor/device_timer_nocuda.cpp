#include "base/error.h"
#include "tensor/device_timer.h"

namespace osdn {

struct DeviceTimer::Events {};

DeviceTimer::DeviceTimer() = default;
DeviceTimer::~DeviceTimer() = default;
DeviceTimer::DeviceTimer(DeviceTimer&&) noexcept = default;
DeviceTimer& DeviceTimer::operator=(DeviceTimer&&) noexcept = default;

void DeviceTimer::start() { throw InternalError("device timer: this program was built without CUDA"); }
void DeviceTimer::stop() { start(); }
double DeviceTimer::milliseconds() {
  start();
  return 0;
}

}  // namespace osdn
