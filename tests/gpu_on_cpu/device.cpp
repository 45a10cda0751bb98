// src/tensor/device.h, device_mark.h, device_graph.h and peers.h for the tests' GPU.
#include "tensor/device.h"

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "tensor/device_graph.h"
#include "tensor/device_mark.h"
#include "tensor/peers.h"
#include "tests/gpu_on_cpu/streams.h"
#include "tests/support/test.h"

namespace osdn {
namespace gpu_on_cpu_detail {

bool is_gpu(at::Device device) { return !device.is_cpu(); }

void check_device() {
  if (const std::string failure = gpu_on_cpu::failure(); !failure.empty()) throw std::runtime_error(failure);
}

}  // namespace gpu_on_cpu_detail

int64_t num_gpus() { return 16; }
std::string no_gpu_reason() { return {}; }
void use_gpu(int64_t index) { gpu_on_cpu::current_gpu() = static_cast<int16_t>(index); }
std::string gpu_identity() { return fmt::format("GPU-on-CPU-{}", gpu_on_cpu::current_gpu()); }
std::string gpu_description() { return "a GPU of the tests, on the CPU"; }
int64_t compute_capability() { return 0; }
CUstream_st* current_stream() { throw InternalError("the tests' GPU has no kernels"); }
void synchronize(at::Device device) {
  if (!gpu_on_cpu_detail::is_gpu(device)) return;
  gpu_on_cpu::synchronize_device();
  gpu_on_cpu_detail::check_device();
}
uint64_t peak_memory_bytes(at::Device) { return 0; }
void release_unused_memory(at::Device device) { synchronize(device); }
at::Tensor pinned_memory(at::IntArrayRef sizes, at::ScalarType type) { return at::empty(sizes, type); }
std::string cuda_versions() { return "none"; }
void make_deterministic() {}

bool is_capturing() { return gpu_on_cpu::Recording::current() != nullptr; }

struct DeviceMark::Event {
  gpu_on_cpu::Mark mark;
};
DeviceMark::DeviceMark() : event_(std::make_unique<Event>()) {}
DeviceMark::~DeviceMark() = default;
void DeviceMark::delay_current_stream() const { event_->mark.delay_current_stream(); }
bool DeviceMark::reached() const {
  gpu_on_cpu_detail::check_device();
  return event_->mark.event->reached(1);
}

struct DeviceGraph::Graph {
  gpu_on_cpu::Recording recording;
};
DeviceGraph::DeviceGraph() = default;
DeviceGraph::~DeviceGraph() = default;
void DeviceGraph::capture(const std::function<void()>& work) {
  gpu_on_cpu::synchronize_device();
  work();
  record(work);
}
void DeviceGraph::record(const std::function<void()>& work, const DeviceGraph*) {
  graph_ = std::make_unique<Graph>();
  gpu_on_cpu::synchronize_device();
  const gpu_on_cpu::OnStream on_stream(gpu_on_cpu::Stream::make());
  graph_->recording.begin();
  try {
    work();
  } catch (...) {
    graph_->recording.abandon();
    throw;
  }
  graph_->recording.finish();
}
void DeviceGraph::replay() { graph_->recording.replay(); }

ForbidSynchronization::ForbidSynchronization() = default;
ForbidSynchronization::~ForbidSynchronization() {}  // another build has something to undo: not trivial

std::string no_peers_reason() { return {}; }
std::string gpu_address() { return fmt::format("GPU {}", gpu_on_cpu::current_gpu()); }
bool can_reach_gpu(const std::string& address) {
  return gpu_on_cpu::behaviour().reaches_others || address == gpu_address();
}
std::string export_memory(const at::Tensor& memory) {
  if (!gpu_on_cpu::behaviour().exports_memory) throw EnvironmentError("memory without a handle");
  return gpu_on_cpu::export_address(memory.const_data_ptr());
}
PeerMemory::PeerMemory(const std::string& exported) : allocation_(nullptr, gpu_on_cpu::close_memory) {
  const auto [mapped, address] = gpu_on_cpu::open_address(exported);
  allocation_.reset(mapped);
  data_ = address;
}

DeviceFlags::DeviceFlags(uint32_t* flags, size_t)
    : flags_(flags, [](uint32_t*) {}), address_(reinterpret_cast<uint64_t>(flags)) {}
void DeviceFlags::raise(const std::vector<size_t>& raised) {
  gpu_on_cpu::Stream::current()->queue([flags = reinterpret_cast<uint32_t*>(address_), raised](uint64_t) {
    for (const size_t flag : raised)
      if (__atomic_exchange_n(flags + flag, 1u, __ATOMIC_ACQ_REL) != 0)
        ++gpu_on_cpu::behaviour().raised_twice;
  });
}
void DeviceFlags::await(size_t flag) {
  gpu_on_cpu::Stream::current()->queue([flag = reinterpret_cast<uint32_t*>(address_) + flag](uint64_t) {
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != 1)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    __atomic_store_n(flag, 0u, __ATOMIC_RELEASE);
  });
}

void copy_memory(void* to, const void* from, size_t bytes) {
  gpu_on_cpu::Stream::current()->queue([=](uint64_t) {
    std::memcpy(to, from, bytes);
    if (gpu_on_cpu::behaviour().corrupts_copies) static_cast<char*>(to)[bytes - 1] ^= 1;
  });
}

struct SideStream::Stream {
  std::shared_ptr<gpu_on_cpu::Stream> stream = gpu_on_cpu::Stream::make();
};
SideStream::SideStream() : stream_(std::make_unique<Stream>()) {}
SideStream::~SideStream() = default;
void SideStream::run(const std::function<void()>& work) {
  const gpu_on_cpu::OnStream on_stream(stream_->stream);
  work();
}

}  // namespace osdn
