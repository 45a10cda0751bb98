#include <ATen/cuda/CUDAEvent.h>

#include "tensor/device_timer.h"

namespace osdn {

struct DeviceTimer::Events {
  at::cuda::CUDAEvent begin{cudaEventDefault};
  at::cuda::CUDAEvent end{cudaEventDefault};
};

DeviceTimer::DeviceTimer() : events_(std::make_unique<Events>()) {}
DeviceTimer::~DeviceTimer() = default;
DeviceTimer::DeviceTimer(DeviceTimer&&) noexcept = default;
DeviceTimer& DeviceTimer::operator=(DeviceTimer&&) noexcept = default;

void DeviceTimer::start() { events_->begin.record(); }
void DeviceTimer::stop() { events_->end.record(); }
double DeviceTimer::milliseconds() {
  events_->end.synchronize();
  return static_cast<double>(events_->begin.elapsed_time(events_->end));
}

}  // namespace osdn
