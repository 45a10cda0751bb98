// Decoding on a GPU as a recorded graph: a step of single tokens is some twenty small kernels a layer, and
// the host would need longer to launch them one by one than the GPU to run them.
#pragma once

#include "model/generate.h"
#include "tensor/device_graph.h"

namespace osdn::model {

// S: sequences; V: vocabulary.

class DecodeGraph {
 public:
  /// Whether `state` can be decoded so: it is on a GPU, of constant size (no softmax attention) and of head
  /// sizes that have a kernel for single tokens.
  static bool fits(const DecodeState& state);

  /// Goes on from a copy of `state`. Recording costs about the time of three steps. The model must outlive
  /// the graph.
  DecodeGraph(const LanguageModel& model, const DecodeState& state);

  /// Reads one token a sequence. Returns the logits [S, V] fp32 on the CPU for the token after, valid until
  /// the next step. The same bits as step() and next_logits() give.
  const at::Tensor& step(const TokenIds& tokens);

  /// What the sequences carry now. Later steps write into its tensors; select() copies them.
  const DecodeState& state() const { return state_; }

 private:
  void run(const LanguageModel& model);

  int64_t vocab_size_;
  DecodeState state_;
  ops::SequencesPtr sequences_;
  at::Tensor host_ids_;     // [S] int64, pinned
  at::Tensor ids_;          // [S] int64
  at::Tensor logits_;       // [S, V] fp32
  at::Tensor host_logits_;  // [S, V] fp32, pinned
  DeviceGraph graph_;
};

}  // namespace osdn::model
