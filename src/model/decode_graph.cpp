#include "model/decode_graph.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/delta_rule.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::model {
namespace decode_graph_detail {

/// Every tensor of constant size that a layer carries.
std::vector<at::Tensor> tensors_of(const DecodeState& state) {
  std::vector<at::Tensor> all;
  for (const MixerState& layer : state.layers)
    for (const at::Tensor* tensor : {&layer.recurrent, &layer.scale, &layer.conv})
      if (tensor->defined()) all.push_back(*tensor);
  all.push_back(state.hidden);
  return all;
}

/// `to` becomes `from`, tensor by tensor; those that are one and the same are done already.
void copy_state(const DecodeState& from, const DecodeState& to) {
  const std::vector<at::Tensor> source = tensors_of(from);
  const std::vector<at::Tensor> target = tensors_of(to);
  OSDN_ASSERT(source.size() == target.size(), "{} and {} tensors of a state", source.size(), target.size());
  // One kernel copies many tensors of one dtype.
  std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> pairs;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i].data_ptr() == target[i].data_ptr()) continue;
    auto& [targets, sources] = pairs[source[i].scalar_type()];
    targets.push_back(target[i]);
    sources.push_back(source[i]);
  }
  for (auto& [dtype, both] : pairs) at::_foreach_copy_(both.first, both.second);
}

DecodeState copy_of(const DecodeState& state) {
  DecodeState copy = state;
  const auto clone = [](at::Tensor* tensor) {
    if (tensor->defined()) *tensor = tensor->clone(at::MemoryFormat::Contiguous);
  };
  for (MixerState& layer : copy.layers)
    for (at::Tensor* tensor : {&layer.recurrent, &layer.scale, &layer.conv}) clone(tensor);
  clone(&copy.hidden);
  return copy;
}

}  // namespace decode_graph_detail

bool DecodeGraph::fits(const DecodeState& state) {
  return state.hidden.defined() && state.hidden.is_cuda() &&
         std::all_of(state.layers.begin(), state.layers.end(), [](const MixerState& layer) {
           return layer.recurrent.defined() &&
                  ops::has_step_kernel(layer.recurrent.size(2), layer.recurrent.size(3));
         });
}

DecodeGraph::DecodeGraph(const LanguageModel& model, const DecodeState& state)
    : vocab_size_(model.vocab_size()) {
  OSDN_ASSERT(fits(state), "a state of {} sequences that is not on a GPU or grows", state.num_sequences());
  const at::NoGradGuard no_grad;
  state_ = decode_graph_detail::copy_of(state);
  const int64_t S = state.num_sequences();
  const at::Device device = state.hidden.device();
  sequences_ = ops::Sequences::equal(S, 1, device);
  host_ids_ = pinned_memory({S}, at::kLong).zero_();
  ids_ = host_ids_.to(device);
  host_logits_ = pinned_memory({S, vocab_size_}, at::kFloat);
  graph_.capture([&] { run(model); });
  // The recording ran the step once.
  decode_graph_detail::copy_state(state, state_);
}

void DecodeGraph::run(const LanguageModel& model) {
  const at::NoGradGuard no_grad;
  const ops::SequencesApart apart;
  DecodeState next = state_;
  ForwardCall call{
      .sequences = sequences_, .state = &next.layers, .single_tokens = true, .overwrite_state = true};
  next.hidden = model.hidden(ids_, call);
  logits_ = model.logits(next.hidden);
  decode_graph_detail::copy_state(next, state_);
}

const at::Tensor& DecodeGraph::step(const TokenIds& tokens) {
  OSDN_ASSERT(static_cast<int64_t>(tokens.size()) == state_.num_sequences(), "{} tokens for {} sequences",
              tokens.size(), state_.num_sequences());
  check_tokens(tokens, vocab_size_);
  std::copy(tokens.begin(), tokens.end(), host_ids_.data_ptr<int64_t>());
  ids_.copy_(host_ids_, /*non_blocking=*/true);
  graph_.replay();
  host_logits_.copy_(logits_, /*non_blocking=*/true);
  for (int64_t& count : state_.num_tokens) ++count;
  synchronize(ids_.device());
  return host_logits_;
}

}  // namespace osdn::model
