// The language model: embedding, blocks, final norm, head. Front door of the layer. Parameters live in an
// arena that the model does not own; it reads them through a WeightSource, and their gradients go to the
// sinks that come with them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/block.h"
#include "model/mixer.h"
#include "ops/sequences.h"
#include "tensor/fwd.h"
#include "tensor/weight.h"

namespace osdn::model {

// N: packed tokens; S: sequences; D: hidden size; V: vocabulary.

/// Every parameter in forward order, with the peer's checkpoint names. Allocates nothing.
std::vector<ParameterSpec> parameter_specs(const config::Model& config, int64_t vocab_size);
int64_t count_parameters(const std::vector<ParameterSpec>& specs);

/// Carried from call to call while decoding, one entry a layer.
using ModelState = std::vector<MixerState>;

/// What data parallelism does beside a pass. Layers are numbered in forward order: 0 is the embedding, 1 .. L
/// are the blocks, L + 1 is the final norm with the head.
struct LayerHooks {
  std::function<void(int64_t layer)> before_forward;  // the weights of `layer` are about to be read
  std::function<void(int64_t layer)>
      after_backward;  // the gradients of `layer` and of all behind it are complete; not called for 0, which
                       // ends the backward pass; on the thread that runs backward
};

/// The number, as LayerHooks count, of the layer that a parameter belongs to.
int64_t layer_of(const std::string& parameter_name, int64_t num_layers);

struct ForwardCall {
  ops::SequencesPtr sequences;
  ModelState* state = nullptr;         // read and replaced when given; made on first use
  bool single_tokens = false;          // every sequence has one, as in decoding step by step
  bool overwrite_state = false;        // its tensors may be written in place: nobody else has them
  bool collect_statistics = false;     // residual statistics of every delta layer
  std::vector<at::Tensor> statistics;  // one [kNumResidualTerms] float64 tensor a layer, in layer order
  config::Recompute recompute = config::Recompute::kNone;  // what backward computes again instead of keeping
  const LayerHooks* hooks = nullptr;  // must outlive the backward pass; its functions may be empty
};

class LanguageModel {
 public:
  LanguageModel(const config::Model& config, int64_t vocab_size, const WeightSource& weights);

  /// ids [N] int64; returns the normalised last hidden states [N, D].
  at::Tensor hidden(const at::Tensor& ids, ForwardCall& call) const;

  /// Sum of the losses of `targets` [N] int64 (ops::kIgnoreTarget is skipped), a scalar in fp32.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets, ForwardCall& call) const;

  /// Loss of every token [N] fp32, without gradient.
  at::Tensor loss_rows(const at::Tensor& ids, const at::Tensor& targets, ForwardCall& call) const;

  /// Logits [N, V] fp32 of hidden states [N, D].
  at::Tensor logits(const at::Tensor& hidden_states) const;

  int64_t vocab_size() const { return vocab_size_; }
  int64_t num_layers() const { return static_cast<int64_t>(blocks_.size()); }

 private:
  int64_t vocab_size_;
  double norm_eps_;
  Weight embeddings_;  // [V, D]
  std::vector<Block> blocks_;
  Weight norm_;  // [D]
  Weight head_;  // [V, D]; the embedding when tied
};

/// Training FLOPs of one token, forward and backward: 6 x the matrix parameters (input embedding excluded)
/// plus the delta rule's 3 HV (6KV + 6CK + 4CV) with chunks of 64 a layer, or softmax attention's 12 H d
/// times the keys that a token sees on average in sequences of that length.
double training_flops_per_token(const config::Model& config, int64_t vocab_size, int64_t sequence_length);

}  // namespace osdn::model
