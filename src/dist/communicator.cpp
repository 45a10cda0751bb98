#include "dist/communicator.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
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

std::optional<int64_t> read_variable(const char* name) {
  const char* text = std::getenv(name);
  if (!text) return std::nullopt;
  int64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, failure] = std::from_chars(text, end, value);
  if (failure != std::errc() || stop != end || value < 0)
    throw UserError("environment variable {}: expected a whole number from 0, got \"{}\"", name, text);
  return value;
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
  return fmt::format("rank {} of {}, step {}: {} of {}", rank(), world_size(), step_,
                     collective_name(collective.kind), collective.what);
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

World world_from_environment() {
  constexpr std::pair<const char*, const char*> kVariables[] = {
      {"RANK", "WORLD_SIZE"}, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}};
  for (const auto& [rank_name, size_name] : kVariables) {
    const auto size = communicator_detail::read_variable(size_name);
    if (!size) continue;
    const auto rank = communicator_detail::read_variable(rank_name);
    if (!rank || *rank >= *size)
      throw UserError("environment variables {} and {}: expected a rank below the world size, got {} and {}",
                      rank_name, size_name, rank ? std::to_string(*rank) : "nothing", *size);
    return {.rank = *rank, .world_size = *size};
  }
  return {};
}

std::unique_ptr<Communicator> make_communicator(const config::Distributed& options, const World& world) {
  const int64_t processes = options.processes_per_node.value_or(1);
  if (world.world_size != 1 || processes != 1)
    throw UserError(
        "distributed: this version trains in one process, asked for {} (world size {}, "
        "distributed.processes_per_node {}); "
        "start one process",
        world.world_size * processes, world.world_size, processes);
  return make_single_communicator();
}

}  // namespace osdn::dist
