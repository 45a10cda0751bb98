#include "dist/communicator.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "dist/detail/c10d_communicator.h"
#include "dist/detail/peer_communicator.h"
#include "tensor/device.h"
#include "tensor/device_mark.h"
#include "tensor/torch.h"

namespace osdn::dist {
namespace communicator_detail {

bool is_reduction(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduceSum || kind == CollectiveKind::kAllReduceMax ||
         kind == CollectiveKind::kReduceScatter;
}

bool is_split(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
}

}  // namespace communicator_detail

std::string_view collective_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kAllReduceSum:
      return "all_reduce_sum";
    case CollectiveKind::kAllReduceMax:
      return "all_reduce_max";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
  }
  return "collective";
}

std::string Communicator::describe(const Collective& collective) const {
  return fmt::format("{}: {} of {}", place(), collective_name(collective.kind), collective.what);
}

std::string Communicator::place() const {
  return fmt::format("rank {} of {}, step {}", rank(), world_size(), step_);
}

std::unique_ptr<PendingCollective> Communicator::start(const Collective& collective) {
  namespace detail = communicator_detail;
  const at::Tensor& range = collective.range;
  if (collective.kind != CollectiveKind::kBarrier) {
    OSDN_ASSERT(range.defined() && range.is_contiguous(), "{}: expected a contiguous range",
                describe(collective));
    const at::ScalarType type = range.scalar_type();
    OSDN_ASSERT(!detail::is_reduction(collective.kind) || type == at::kFloat || type == at::kDouble ||
                    type == at::kLong,
                "{}: reductions take float32, float64 or int64, got {}", describe(collective),
                c10::toString(type));
    OSDN_ASSERT(!detail::is_split(collective.kind) || range.numel() % world_size() == 0,
                "{}: {} elements are not divisible among the ranks", describe(collective), range.numel());
    OSDN_ASSERT(collective.kind != CollectiveKind::kBroadcast ||
                    (collective.root >= 0 && collective.root < world_size()),
                "{}: no rank {}", describe(collective), collective.root);
  }
  return launch(collective);
}

void Communicator::barrier(std::string_view what) {
  run({.kind = CollectiveKind::kBarrier, .range = {}, .root = 0, .what = std::string(what)});
}
void Communicator::all_reduce_sum(const at::Tensor& range, std::string_view what) {
  run({.kind = CollectiveKind::kAllReduceSum, .range = range, .root = 0, .what = std::string(what)});
}
void Communicator::all_reduce_max(const at::Tensor& range, std::string_view what) {
  run({.kind = CollectiveKind::kAllReduceMax, .range = range, .root = 0, .what = std::string(what)});
}
void Communicator::broadcast(const at::Tensor& range, int64_t root, std::string_view what) {
  run({.kind = CollectiveKind::kBroadcast, .range = range, .root = root, .what = std::string(what)});
}
void Communicator::all_gather(const at::Tensor& range, std::string_view what) {
  run({.kind = CollectiveKind::kAllGather, .range = range, .root = 0, .what = std::string(what)});
}
void Communicator::reduce_scatter(const at::Tensor& range, std::string_view what) {
  run({.kind = CollectiveKind::kReduceScatter, .range = range, .root = 0, .what = std::string(what)});
}

at::Tensor Communicator::to_host(const at::Tensor& values) {
  if (values.is_cpu() || !is_connected()) return values.to(at::kCPU);
  // A thread that waits within the driver keeps others out of it, who are to end its waiting.
  at::Tensor host = pinned_memory(values.sizes(), values.scalar_type());
  host.copy_(values, /*non_blocking=*/true);
  const DeviceMark mark;
  auto checked = std::chrono::steady_clock::now();
  while (!mark.reached()) {
    std::this_thread::yield();
    const auto now = std::chrono::steady_clock::now();
    if (now - checked < std::chrono::milliseconds(50)) continue;
    check();
    checked = now;
  }
  check();
  return host;
}

std::string Communicator::broadcast_text(const std::string& text, std::string_view what) {
  const std::string name(what);
  const at::TensorOptions on_device = at::TensorOptions().device(device());
  at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()), on_device.dtype(at::kLong));  // [1]
  broadcast(size, 0, "the length of " + name);
  const int64_t length = to_host(size).item<int64_t>();
  if (length == 0) return {};
  at::Tensor bytes = at::zeros({length}, at::kByte);  // [length]
  if (rank() == 0) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  bytes = bytes.to(device());
  broadcast(bytes, 0, name);
  bytes = to_host(bytes);
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(length)};
}

std::unique_ptr<Communicator> make_communicator(const LaunchEnvironment& launched, at::Device device,
                                                std::chrono::seconds timeout) {
  OSDN_ASSERT(launched.world_size >= 1 && launched.rank >= 0 && launched.rank < launched.world_size,
              "rank {} of {}", launched.rank, launched.world_size);
  if (launched.world_size == 1) return make_single_communicator(device);
  auto communicator = detail::make_c10d_communicator(launched, device, timeout);
  return device.is_cpu() ? std::move(communicator)
                         : detail::make_peer_communicator(std::move(communicator), {.timeout = timeout});
}

}  // namespace osdn::dist
