#include "optim/parameter_arena.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "tensor/torch.h"

namespace osdn::optim {

namespace parameter_arena_detail {

using Group = std::vector<const ParameterSpec*>;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Whether the ops read the group from the masters even where there is a compute copy.
bool reads_masters(const Group& group) {
  const bool first = group.front()->full_precision;
  for (const ParameterSpec* spec : group)
    OSDN_ASSERT(spec->full_precision == first,
                "{}: a group is read from the masters as a whole or not at all", spec->name);
  return first;
}

}  // namespace parameter_arena_detail

ParameterArena::ParameterArena(const std::vector<ParameterSpec>& specs, const Options& options)
    : sharded_(options.sharding.shared) {
  namespace detail = parameter_arena_detail;
  std::map<int64_t, detail::Group, std::greater<>> groups;
  for (const ParameterSpec& spec : specs) groups[spec.group].push_back(&spec);
  std::vector<detail::Group> shared;
  std::vector<detail::Group> common;
  for (const auto& [number, members] : groups) {
    const bool apart = sharded_ && options.compute != at::kFloat && detail::reads_masters(members);
    (apart ? common : shared).push_back(members);
  }
  const int64_t shared_end =
      detail::round_up(add_groups(shared, 0), kBlock * std::max<int64_t>(1, options.sharding.world_size));
  const int64_t end = add_groups(common, shared_end);
  size_ = end;
  share_out(options.sharding, shared_end, end);
  const int64_t num_owned = owned_.back().moments + owned_.back().size();
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(options.device);
  if (options.compute != at::kFloat) compute_ = at::zeros({end}, fp32.dtype(options.compute));
  for (OwnedRange& range : owned_) range.masters = masters_shared_out() ? range.moments : range.begin;
  masters_ = at::zeros({masters_shared_out() ? num_owned : end}, fp32);
  if (options.training) {
    gradients_ = at::zeros({end}, fp32);
    exp_avgs_ = at::zeros({num_owned}, fp32);
    exp_avg_sqs_ = at::zeros({num_owned}, fp32);
  }
  at::Tensor blocks = at::zeros({end / kBlock}, at::kByte);
  for (const Slot& slot : slots_) {
    if (!slot.spec.trainable || (!slot.spec.decay && !options.decay_all)) continue;
    const int64_t first = slot.offset / kBlock;
    const int64_t last = (slot.offset + slot.spec.num_elements() + kBlock - 1) / kBlock;
    blocks.narrow(0, first, last - first).fill_(1);
  }
  decay_blocks_ = blocks.to(options.device);
}

/// Places groups one behind the other from element `end` on; returns where they end.
int64_t ParameterArena::add_groups(const std::vector<std::vector<const ParameterSpec*>>& groups,
                                   int64_t end) {
  for (const std::vector<const ParameterSpec*>& members : groups) {
    for (const ParameterSpec* spec : members) {
      OSDN_ASSERT(spec->decay == members.front()->decay, "{}: a group decays as a whole or not at all",
                  spec->name);
      const bool fresh = index_.emplace(spec->name, slots_.size()).second;
      OSDN_ASSERT(fresh, "{}: declared twice", spec->name);
      slots_.push_back({.spec = *spec, .offset = end});
      end += spec->num_elements();
      num_parameters_ += spec->num_elements();
    }
    end = parameter_arena_detail::round_up(end, kBlock);
  }
  return end;
}

void ParameterArena::share_out(const Sharding& sharding, int64_t shared_end, int64_t end) {
  OSDN_ASSERT(sharding.world_size >= 1 && sharding.rank >= 0 && sharding.rank < sharding.world_size,
              "rank {} of {}", sharding.rank, sharding.world_size);
  const auto shareable = [&](int64_t elements) {
    return parameter_arena_detail::round_up(elements, kBlock * sharding.world_size);
  };
  const int64_t step = sharding.bucket_elements > 0 ? shareable(sharding.bucket_elements) : shared_end;
  const int64_t last_step = sharding.last_elements > 0 ? shareable(sharding.last_elements) : step;
  for (int64_t begin = 0; begin < shared_end;) {
    const int64_t size = shared_end - begin > step ? step : last_step;
    buckets_.push_back({.begin = begin, .end = std::min(shared_end, begin + size)});
    begin = buckets_.back().end;
  }
  const auto own = [&](int64_t begin, int64_t last, bool common) {
    const int64_t moments = owned_.empty() ? 0 : owned_.back().moments + owned_.back().size();
    owned_.push_back({{.begin = begin, .end = last}, moments, 0, common});
  };
  if (!sharded_) {
    own(0, end, false);
    return;
  }
  for (const Range& bucket : buckets_) {
    const int64_t part = bucket.size() / sharding.world_size;
    own(bucket.begin + sharding.rank * part, bucket.begin + (sharding.rank + 1) * part, false);
  }
  if (end > shared_end) own(shared_end, end, true);
}

const ParameterArena::Slot& ParameterArena::slot(const std::string& name) const {
  const auto found = index_.find(name);
  OSDN_ASSERT(found != index_.end(), "no parameter is named {}", name);
  return slots_[found->second];
}

at::Tensor ParameterArena::range(const at::Tensor& arena, const Slot& slot) const {
  return range(arena, slot, slot.offset);
}

at::Tensor ParameterArena::range(const at::Tensor& arena, const Slot& slot, int64_t offset) const {
  OSDN_ASSERT(arena.defined(), "{}: asked for a gradient or moment of an arena made for inference",
              slot.spec.name);
  // A tensor of its own over the range, not a view: views share one version counter, so a change of any range
  // would invalidate what backward saved of all others.
  char* data = static_cast<char*>(arena.data_ptr()) + offset * static_cast<int64_t>(arena.element_size());
  return at::from_blob(
      data, slot.spec.shape, [keep = arena](void*) {}, arena.options());
}

Weight ParameterArena::weight(const std::string& name) const {
  const Slot& found = slot(name);
  const bool copied = compute_.defined() && !found.spec.full_precision;
  // Of shared masters those that ops read are common to all ranks, and the last that a rank owns.
  const int64_t moved = masters_shared_out() ? owned_.back().begin - owned_.back().masters : 0;
  return {.value = copied ? range(compute_, found) : range(masters_, found, found.offset - moved),
          .sink = gradients_.defined() && found.spec.trainable ? range(gradients_, found) : at::Tensor()};
}

WeightSource ParameterArena::source() const {
  return [this](const std::string& name) { return weight(name); };
}

void ParameterArena::set(const Slot& slot, const at::Tensor& value) {
  OSDN_ASSERT(value.numel() == slot.spec.num_elements(), "{}: {} values for {} elements", slot.spec.name,
              value.numel(), slot.spec.num_elements());
  const at::Tensor flat = value.reshape({-1});  // [n]
  if (compute_.defined()) compute_.narrow(0, slot.offset, flat.numel()).copy_(flat);
  if (!masters_shared_out()) {
    masters_.narrow(0, slot.offset, flat.numel()).copy_(flat);
    return;
  }
  for (const OwnedRange& own : owned_) {
    const int64_t begin = std::max(slot.offset, own.begin);
    const int64_t size = std::min(slot.offset + flat.numel(), own.end) - begin;
    if (size <= 0) continue;
    masters_.narrow(0, own.masters + begin - own.begin, size)
        .copy_(flat.narrow(0, begin - slot.offset, size));
  }
}

at::Tensor ParameterArena::master(const std::string& name) const {
  OSDN_ASSERT(!masters_shared_out(), "{}: its master is shared out among ranks", name);
  return range(masters_, slot(name));
}
at::Tensor ParameterArena::gradient(const std::string& name) const { return range(gradients_, slot(name)); }
at::Tensor ParameterArena::exp_avg(const std::string& name) const {
  OSDN_ASSERT(!sharded_, "{}: its moments are shared out among ranks", name);
  return range(exp_avgs_, slot(name));
}
at::Tensor ParameterArena::exp_avg_sq(const std::string& name) const {
  OSDN_ASSERT(!sharded_, "{}: its moments are shared out among ranks", name);
  return range(exp_avg_sqs_, slot(name));
}

void ParameterArena::zero_gradients() { gradients_.zero_(); }

void ParameterArena::refresh_compute_copy() {
  for (const OwnedRange& own : owned_) refresh_compute_copy(own);
}

void ParameterArena::refresh_compute_copy(const OwnedRange& range) {
  if (!compute_.defined()) return;
  compute_.narrow(0, range.begin, range.size()).copy_(masters_.narrow(0, range.masters, range.size()));
}

ParameterArena::Bytes ParameterArena::bytes() const {
  const auto of = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  };
  return {.masters = of(masters_),
          .gradients = of(gradients_),
          .moments = of(exp_avgs_) + of(exp_avg_sqs_),
          .compute_copy = of(compute_)};
}

std::string ParameterArena::Bytes::describe() const {
  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  return fmt::format("{:.3f} GiB (masters {:.3f}, gradients {:.3f}, moments {:.3f}, compute copy {:.3f})",
                     gib(sum()), gib(masters), gib(gradients), gib(moments), gib(compute_copy));
}

}  // namespace osdn::optim
