#include "optim/parameter_arena.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "tensor/torch.h"

namespace osdn::optim {

ParameterArena::ParameterArena(const std::vector<ParameterSpec>& specs, const Options& options) {
  std::map<int64_t, std::vector<const ParameterSpec*>, std::greater<>> groups;
  for (const ParameterSpec& spec : specs) groups[spec.group].push_back(&spec);
  int64_t end = 0;
  for (const auto& [number, members] : groups) {
    for (const ParameterSpec* spec : members) {
      OSDN_ASSERT(spec->decay == members.front()->decay, "{}: a group decays as a whole or not at all",
                  spec->name);
      const bool fresh = index_.emplace(spec->name, slots_.size()).second;
      OSDN_ASSERT(fresh, "{}: declared twice", spec->name);
      slots_.push_back({.spec = *spec, .offset = end});
      end += spec->num_elements();
      num_parameters_ += spec->num_elements();
    }
    end = (end + kBlock - 1) / kBlock * kBlock;
  }
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(options.device);
  masters_ = at::zeros({end}, fp32);
  if (options.training) {
    gradients_ = at::zeros({end}, fp32);
    exp_avgs_ = at::zeros({end}, fp32);
    exp_avg_sqs_ = at::zeros({end}, fp32);
  }
  if (options.compute != at::kFloat) compute_ = at::zeros({end}, fp32.dtype(options.compute));
  at::Tensor blocks = at::zeros({end / kBlock}, at::kByte);
  for (const Slot& slot : slots_) {
    if (!slot.spec.trainable || (!slot.spec.decay && !options.decay_all)) continue;
    const int64_t first = slot.offset / kBlock;
    const int64_t last = (slot.offset + slot.spec.num_elements() + kBlock - 1) / kBlock;
    blocks.narrow(0, first, last - first).fill_(1);
  }
  decay_blocks_ = blocks.to(options.device);
}

const ParameterArena::Slot& ParameterArena::slot(const std::string& name) const {
  const auto found = index_.find(name);
  OSDN_ASSERT(found != index_.end(), "no parameter is named {}", name);
  return slots_[found->second];
}

at::Tensor ParameterArena::range(const at::Tensor& arena, const Slot& slot) const {
  OSDN_ASSERT(arena.defined(), "{}: asked for a gradient or moment of an arena made for inference",
              slot.spec.name);
  // A tensor of its own over the range, not a view: views share one version counter, so a change of any range
  // would invalidate what backward saved of all others.
  char* data =
      static_cast<char*>(arena.data_ptr()) + slot.offset * static_cast<int64_t>(arena.element_size());
  return at::from_blob(
      data, slot.spec.shape, [keep = arena](void*) {}, arena.options());
}

Weight ParameterArena::weight(const std::string& name) const {
  const Slot& found = slot(name);
  const bool copied = compute_.defined() && !found.spec.full_precision;
  return {.value = range(copied ? compute_ : masters_, found),
          .sink = gradients_.defined() && found.spec.trainable ? range(gradients_, found) : at::Tensor()};
}

WeightSource ParameterArena::source() const {
  return [this](const std::string& name) { return weight(name); };
}

at::Tensor ParameterArena::master(const std::string& name) const { return range(masters_, slot(name)); }
at::Tensor ParameterArena::gradient(const std::string& name) const { return range(gradients_, slot(name)); }
at::Tensor ParameterArena::exp_avg(const std::string& name) const { return range(exp_avgs_, slot(name)); }
at::Tensor ParameterArena::exp_avg_sq(const std::string& name) const {
  return range(exp_avg_sqs_, slot(name));
}

void ParameterArena::zero_gradients() { gradients_.zero_(); }

void ParameterArena::refresh_compute_copy() {
  if (compute_.defined()) compute_.copy_(masters_);
}

}  // namespace osdn::optim
