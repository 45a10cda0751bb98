// Decoding with a whole model: one token for each of S sequences, from the embedding to the logits, in bf16.
// Bound by memory: every weight is read once, the embedding of a token excepted, every state read and
// written.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/bench/case.h"
#include "config/yaml.h"
#include "model/decode_graph.h"
#include "model/generate.h"
#include "model/init.h"
#include "model/lm.h"
#include "ops/sequences.h"
#include "optim/parameter_arena.h"
#include "tensor/torch.h"
#include "tests/bench/shipped_config.h"

namespace osdn::bench {
namespace generate_bench {

constexpr int64_t kPromptTokens = 100;

/// A shipped model with random weights, made when it is first needed, shared by the cases of its batch sizes.
class DecodedModel {
 public:
  DecodedModel(std::string file, at::Device device)
      : config_(config::load(shipped_config(file), {}).model),
        vocab_size_(config_.vocab_size.value_or(2048)),
        device_(device) {}

  const model::LanguageModel& model() {
    if (model_) return *model_;
    arena_ = std::make_unique<optim::ParameterArena>(
        model::parameter_specs(config_, vocab_size_),
        optim::ParameterArena::Options{.device = device_, .compute = dtype(), .training = false});
    at::manual_seed(42);
    for (const auto& slot : arena_->slots()) {
      at::Tensor values;  // [the parameter's shape]
      if (slot.spec.initializer == Initializer::kNormal) {
        // Billions of numbers: where they will lie.
        values = at::randn(slot.spec.shape, at::TensorOptions().device(device_)) * slot.spec.scale;
      } else {
        values = at::empty(slot.spec.shape, at::kFloat);
        model::initialize(slot.spec, 42, values);
      }
      arena_->set(slot, values);
    }
    model_ = std::make_unique<model::LanguageModel>(config_, vocab_size_, arena_->source());
    return *model_;
  }

  /// Bytes of the weights that a token needs, the rows of the embedding left out.
  double weight_bytes() const {
    double bytes = 0;
    for (const ParameterSpec& spec : model::parameter_specs(config_, vocab_size_)) {
      if (spec.name == "model.embeddings.weight" && !config_.tie_embeddings) continue;
      const size_t size = spec.full_precision ? sizeof(float) : c10::elementSize(dtype());
      bytes += static_cast<double>(spec.num_elements()) * static_cast<double>(size);
    }
    return bytes;
  }

  at::ScalarType dtype() const { return device_.is_cuda() ? at::kBFloat16 : at::kFloat; }
  at::Device device() const { return device_; }
  int64_t vocab_size() const { return vocab_size_; }

 private:
  config::Model config_;
  int64_t vocab_size_;
  at::Device device_;
  std::unique_ptr<optim::ParameterArena> arena_;
  std::unique_ptr<model::LanguageModel> model_;
};

/// S prompts read, and the step that reads one token more of each.
class Decoding {
 public:
  Decoding(std::shared_ptr<DecodedModel> model, int64_t num_sequences)
      : model_(std::move(model)), num_sequences_(num_sequences) {}

  /// Difference of the logits from those of one pass over prompt and token.
  double error(bool recorded) {
    make();
    const at::NoGradGuard no_grad;
    const ops::SequencesApart apart;  // the same products: others round other activations of two dozen layers
    model::ForwardCall whole{.sequences =
                                 ops::Sequences::equal(num_sequences_, kPromptTokens + 1, model_->device())};
    const at::Tensor hidden = model_->model().hidden(text_.flatten(), whole);  // [S (P + 1), D]
    const at::Tensor last =
        model_->model().logits(hidden.view({num_sequences_, kPromptTokens + 1, -1}).select(1, kPromptTokens));
    const at::Tensor expected = last.to(at::kCPU);  // [S, V]
    return recorded ? relative_error(recorded_step(), expected) : relative_error(step(), expected);
  }

  /// Launched from the host one by one; the logits on the CPU.
  at::Tensor step() {
    make();
    model::DecodeState state = state_;
    model::step(model_->model(), tokens_, &state);
    return model::next_logits(model_->model(), state);
  }

  /// As `osdn generate` makes it: by a recorded graph where the model has one.
  at::Tensor recorded_step() {
    make();
    if (!graph_) graph_ = std::make_unique<model::DecodeGraph>(model_->model(), state_);
    return graph_->step(tokens_);
  }

 private:
  void make() {
    if (!tokens_.empty()) return;
    at::manual_seed(1);
    text_ = at::randint(0, model_->vocab_size(), {num_sequences_, kPromptTokens + 1}, at::kLong);
    std::vector<model::TokenIds> prompts;
    for (int64_t s = 0; s < num_sequences_; ++s) {
      const int64_t* row = text_.const_data_ptr<int64_t>() + s * text_.size(1);
      prompts.emplace_back(row, row + kPromptTokens);
      tokens_.push_back(static_cast<int32_t>(row[kPromptTokens]));
    }
    state_ = model::prefill(model_->model(), prompts, model_->device());
    text_ = text_.to(model_->device());
  }

  std::shared_ptr<DecodedModel> model_;
  int64_t num_sequences_;
  at::Tensor text_;           // [S, P + 1] prompts of P tokens and the token after
  model::TokenIds tokens_;    // [S] the token after
  model::DecodeState state_;  // after the prompts
  std::unique_ptr<model::DecodeGraph> graph_;
};

/// Bytes that a step reads and writes of the states of one sequence.
double state_traffic(const config::Model& config, size_t element_size) {
  const auto K = static_cast<double>(config.head_dim);
  const auto V = static_cast<double>(config::value_dim(config));
  const auto HV = static_cast<double>(config::num_value_heads(config));
  const double channels = 2 * static_cast<double>(config.num_heads) * K + HV * V;
  const double carried = HV * K * V * sizeof(float) + (config.osdn ? HV * K * sizeof(float) : 0.0) +
                         channels * static_cast<double>(config.conv_size) * static_cast<double>(element_size);
  return 2 * carried * static_cast<double>(config.num_layers);
}

std::vector<Case> cases(at::Device device) {
  const bool gpu = device.is_cuda();
  const std::vector<std::string> files =
      gpu ? std::vector<std::string>{"delta_net_1.3b.yaml",
                                     "osdn_delta_net_1.3b.yaml",
                                     "osdn_apf_delta_net_1.3b.yaml",
                                     "gated_delta_net_1.3b.yaml",
                                     "osdn_gated_delta_net_1.3b.yaml",
                                     "kda_1.3b.yaml",
                                     "osdn_kda_1.3b.yaml"}
          : std::vector<std::string>{"quickstart_plain.yaml", "quickstart.yaml"};
  std::vector<Case> made;
  for (const std::string& file : files) {
    const auto model = std::make_shared<DecodedModel>(file, device);
    const config::Model config = config::load(shipped_config(file), {}).model;
    for (const int64_t S : {int64_t{1}, int64_t{64}}) {
      const auto rows = static_cast<double>(S);
      Case test;
      test.shape = fmt::format("{} S{}", file, S);
      test.dtype = model->dtype();
      test.device = device;
      test.bytes = model->weight_bytes() + rows * state_traffic(config, c10::elementSize(model->dtype())) +
                   rows * static_cast<double>(model->vocab_size()) * sizeof(float);
      test.flop = rows * model->weight_bytes() / static_cast<double>(c10::elementSize(model->dtype())) * 2;
      // bf16 rounds the activations of two dozen layers, in other groups of tokens in the two ways.
      test.tolerance = gpu ? 5e-2 : 1e-4;
      for (const bool recorded : {false, true}) {
        if (recorded && !gpu) continue;
        const auto decoding = std::make_shared<Decoding>(model, S);
        test.pass = recorded ? "recorded step" : "step";
        test.error = [decoding, recorded] { return decoding->error(recorded); };
        if (recorded)
          test.run = [decoding] { decoding->recorded_step(); };
        else
          test.run = [decoding] { decoding->step(); };
        made.push_back(test);
      }
    }
  }
  return made;
}

const Registrar kGenerate("generate", cases);

}  // namespace generate_bench
}  // namespace osdn::bench
