#include "train/passes.h"

#include "base/error.h"
#include "base/log.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::train {
namespace passes_detail {

int64_t num_sequences(const data::Batch& batch) { return static_cast<int64_t>(batch.offsets.size()) - 1; }

/// A batch of single tokens takes the path of decoding.
bool has_long_sequence(const data::Batch& batch) {
  for (size_t i = 1; i < batch.offsets.size(); ++i)
    if (batch.offsets[i] - batch.offsets[i - 1] > 1) return true;
  return false;
}

}  // namespace passes_detail

Passes::Passes(const model::LanguageModel& model, DataParallel& parallel, const PassOptions& options)
    : model_(model),
      parallel_(parallel),
      options_(options),
      device_(parallel.communicator().device()),
      captures_(device_.is_cuda() && options.cuda_graph.value_or(parallel.communicator().world_size() == 1)),
      loss_sum_(at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device_))) {
  // Also where it turns out that nothing can be captured: the order of collectives is that of all ranks.
  if (captures_) parallel_.gather_in_passes();
}

Passes::~Passes() = default;

void Passes::begin_step() {
  loss_sum_.zero_();
  if (captures_ && seen_ && !decided_) decide();
}

at::Tensor Passes::compute(const eval::DeviceBatch& input, Place place, bool collect_statistics) {
  if (place.gathers) parallel_.begin_passes();
  model::ForwardCall call{.sequences = input.sequences,
                          .collect_statistics = collect_statistics,
                          .recompute = options_.recompute,
                          .hooks = parallel_.hooks(place.sums)};
  const at::Tensor loss = model_.loss(input.inputs, input.targets, call);
  torch::autograd::backward({loss / static_cast<double>(options_.global_targets)}, {});
  loss_sum_ += loss.detach().to(at::kDouble);
  if (place.sums) parallel_.finish_gradients();
  return call.statistics.empty() ? at::Tensor() : at::stack(call.statistics);
}

at::Tensor Passes::run(const data::Batch& batch, int64_t micro, bool collect_statistics) {
  const Place place{.gathers = micro == 0 && parallel_.gathers_in_passes(),
                    .sums = micro + 1 == options_.micro_batches && parallel_.sums_gradients()};
  const bool capturable = captures_ && passes_detail::has_long_sequence(batch);
  // The first step makes what ops, cuBLAS and NCCL make once, and shows what the ops ask for.
  if (!capturable || !decided_) {
    const eval::DeviceBatch input = eval::to_device(batch, device_);
    const at::Tensor statistics =
        compute(input, place, collect_statistics || (capturable && options_.residuals));
    if (capturable) seen_ = input.sequences;
    return collect_statistics ? statistics : at::Tensor();
  }
  fill_input(batch);
  Recorded& pass = recorded(place);
  pass.graph.replay();
  parallel_.communicator().watch_replay(pass.collectives);
  if (place.gathers) parallel_.passes_begun();
  return collect_statistics && pass.statistics.defined() ? pass.statistics.clone() : at::Tensor();
}

/// After the first step: whether the next ones can be captured.
void Passes::decide() {
  decided_ = true;
  captures_ = !seen_->lengths_read();
  if (captures_) {
    log::info("forward and backward are captured in a CUDA graph{}",
              parallel_.sums_gradients() ? ", with their collectives" : "");
    return;
  }
  constexpr const char* kReason =
      "an op of this model and precision reads the lengths of documents on the host";
  if (options_.cuda_graph)
    throw UserError("train.cuda_graph: true cannot be had: {}; set it to auto or false", kReason);
  log::info("forward and backward are not captured in a CUDA graph: {}", kReason);
}

/// Copies the batch to where the graphs read it; makes that place, or a larger one.
void Passes::fill_input(const data::Batch& batch) {
  const int64_t needed = passes_detail::num_sequences(batch);
  const bool fits = needed <= num_sequences_;
  // Room to spare is no use where all batches have the same number: few sequences are scanned in another way.
  if (!fits) num_sequences_ = num_sequences_ == 0 ? needed : needed + needed / 4;
  const eval::DeviceBatch input = eval::to_device(batch, device_, num_sequences_);
  if (!fits) {
    discard();
    input_ = input;
    input_.sequences->prepare_lists(*seen_);
    return;
  }
  input_.inputs.copy_(input.inputs);
  input_.targets.copy_(input.targets);
  input_.sequences->copy_tensors(*input.sequences);
}

/// The memory of one set of graphs is all that a run has room for.
void Passes::discard() {
  if (graphs_.empty()) return;
  synchronize(device_);
  graphs_.clear();
  release_unused_memory(device_);
}

Passes::Recorded& Passes::recorded(Place place) {
  std::unique_ptr<Recorded>& pass = graphs_[{place.gathers, place.sums}];
  if (pass) return *pass;
  const DeviceGraph* memory = nullptr;
  for (const auto& [other_place, other] : graphs_)
    if (other) memory = &other->graph;
  auto made = std::make_unique<Recorded>();
  made->collectives = parallel_.communicator().begin_recording();
  made->graph.record([&] { made->statistics = compute(input_, place, options_.residuals); }, memory);
  pass = std::move(made);
  return *pass;
}

}  // namespace osdn::train
