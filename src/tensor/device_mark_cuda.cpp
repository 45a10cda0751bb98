#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include "tensor/device.h"
#include "tensor/device_mark.h"

namespace osdn {

struct DeviceMark::Event {
  at::cuda::CUDAEvent event;
};

bool is_capturing() {
  return num_gpus() > 0 &&
         c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

DeviceMark::DeviceMark() : event_(std::make_unique<Event>()) { event_->event.record(); }
DeviceMark::~DeviceMark() = default;

void DeviceMark::delay_current_stream() const { event_->event.block(at::cuda::getCurrentCUDAStream()); }

bool DeviceMark::reached() const {
  // A question from another thread would otherwise break the capture.
  const c10::cuda::CUDAStreamCaptureModeGuard guard(cudaStreamCaptureModeThreadLocal);
  return event_->event.query();
}

}  // namespace osdn
