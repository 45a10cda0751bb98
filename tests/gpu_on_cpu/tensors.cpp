// Tensors of the tests' GPU: the ops that the program queues on streams, and the CPU's for all others, for
// which the host waits.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <optional>
#include <stdexcept>
#include <utility>

#include "tests/gpu_on_cpu/streams.h"
#include "tests/support/test.h"

namespace osdn::gpu_on_cpu {
namespace tensors_detail {

constexpr at::DeviceType kGpu = at::DeviceType::PrivateUse1;

struct GpuAllocator : at::Allocator {
  at::DataPtr allocate(size_t bytes) override;
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};
GpuAllocator allocator;

struct GuardImpl : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return kGpu; }
  at::Device exchangeDevice(at::Device device) const override {
    return {kGpu, static_cast<at::DeviceIndex>(std::exchange(current_gpu(), device.index()))};
  }
  at::Device getDevice() const override { return {kGpu, static_cast<at::DeviceIndex>(current_gpu())}; }
  void setDevice(at::Device device) const override { current_gpu() = device.index(); }
  void uncheckedSetDevice(at::Device device) const noexcept override { current_gpu() = device.index(); }
  c10::Stream getStream(at::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 16; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl)

struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  at::DeviceIndex deviceCount() const override { return 16; }
  at::DeviceIndex getCurrentDevice() const override { return static_cast<at::DeviceIndex>(current_gpu()); }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(at::kCPU); }
};

const bool registered = [] {
  c10::SetAllocator(kGpu, &allocator);
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

at::DataPtr GpuAllocator::allocate(size_t bytes) {
  void* memory = gpu_on_cpu::allocate(bytes);
  return {memory, memory, &free_memory, at::Device(kGpu, static_cast<at::DeviceIndex>(current_gpu()))};
}

/// The same memory for ops of the CPU.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [](void*) {},
      at::TensorOptions().dtype(tensor.scalar_type()));
}

template <typename Function>
void queue_on_current(Function function) {
  Stream::current()->queue([function = std::move(function)](uint64_t) {
    const at::NoGradGuard no_grad;
    function();
  });
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::Tensor(at::detail::empty_generic(sizes, &allocator,
                                              c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                              c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::Tensor(at::detail::empty_strided_generic(sizes, strides, &allocator,
                                                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                      c10::dtype_or_default(dtype)));
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) { return at::native::view(self, sizes); }

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  queue_on_current([from, to] { on_cpu(to).copy_(on_cpu(from)); });
  const bool within_gpu = !from.is_cpu() && !to.is_cpu();
  // A copy from the host's memory has read it when the call returns; one to the host has not written it.
  if (!within_gpu && !(non_blocking && to.is_cpu())) Stream::current()->synchronize();
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    const at::Tensor fresh = at::empty(from.sizes(), to.options());
    to.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
    to.unsafeGetTensorImpl()->set_sizes_contiguous(from.sizes());
  }
  return copy_from(from, to, false);
}

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  queue_on_current([self, value] { on_cpu(self).fill_(value); });
  return self;
}

at::Tensor& zero(at::Tensor& self) { return fill(self, 0); }

at::Tensor& add_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha,
                    at::Tensor& out) {
  queue_on_current([=] {
    at::Tensor sum = on_cpu(out);
    at::add_out(sum, on_cpu(self), on_cpu(other), alpha);
  });
  return out;
}

at::Tensor& add_in_place(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return add_out(self, other, alpha, self);
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("fill_.Scalar", &fill);
  library.impl("zero_", &zero);
  library.impl("add.out", &add_out);
  library.impl("add_.Tensor", &add_in_place);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

}  // namespace tensors_detail
}  // namespace osdn::gpu_on_cpu
