#include "config/detail/presets.h"
#include "config/detail/table.h"

namespace osdn::config::detail {
namespace {

void add_layers(Table& table) {
  table.section("model", "The architecture.");
  table.field(
      "backbone", [](auto& c) -> auto& { return c.model.backbone; }, any(), "Token mixer of the blocks");
  table.field(
      "vocab_size", [](auto& c) -> auto& { return c.model.vocab_size; }, between(2, 1 << 30),
      "Number of token ids; null: the tokenizer's");
  table.field(
      "hidden_size", [](auto& c) -> auto& { return c.model.hidden_size; }, dimension(),
      "Width of the residual stream; delta_net and transformer: num_heads x head_dim");
  table.field(
      "num_layers", [](auto& c) -> auto& { return c.model.num_layers; }, dimension(), "Number of blocks");
  table.field(
      "num_heads", [](auto& c) -> auto& { return c.model.num_heads; }, dimension(), "Heads of the mixer");
  table.field(
      "head_dim", [](auto& c) -> auto& { return c.model.head_dim; }, dimension(),
      "Dimension of a head's key");
  table.field(
      "num_value_heads", [](auto& c) -> auto& { return c.model.num_value_heads; }, dimension(),
      "Value heads, a multiple of num_heads (gated_delta_net, kda); null: num_heads");
  table.field(
      "value_expand", [](auto& c) -> auto& { return c.model.value_expand; }, above_up_to(0, 64),
      "Dimension of a head's value over head_dim; null: 2 for gated_delta_net, else 1");
  table.field(
      "intermediate_size", [](auto& c) -> auto& { return c.model.intermediate_size; }, dimension(),
      "Width of the SwiGLU; null: 256 ceil(floor(8/3 hidden_size) / 256)");
  table.field(
      "conv_size", [](auto& c) -> auto& { return c.model.conv_size; }, between(1, 64),
      "Taps of the short convolutions, in tokens");
  table.field(
      "tie_embeddings", [](auto& c) -> auto& { return c.model.tie_embeddings; }, any(),
      "Share one matrix between the embedding and the output head");
  table.field(
      "norm_eps", [](auto& c) -> auto& { return c.model.norm_eps; }, above(0),
      "Added to the mean square in every RMSNorm");
  table.field(
      "initializer_range", [](auto& c) -> auto& { return c.model.initializer_range; }, above(0),
      "Standard deviation of the initial weights");
  table.field(
      "use_gate", [](auto& c) -> auto& { return c.model.use_gate; }, any(),
      "Gate the output norm of the mixer (swish; kda: sigmoid, always); null: true but for delta_net");
  table.field(
      "allow_negative_eigenvalues", [](auto& c) -> auto& { return c.model.allow_negative_eigenvalues; },
      any(), "Let beta reach 2 instead of 1");
  table.field(
      "qk_norm", [](auto& c) -> auto& { return c.model.qk_norm; }, any(),
      "delta_net: queries and keys by their Euclidean norm, or by their sum");
  table.field(
      "qk_activation", [](auto& c) -> auto& { return c.model.qk_activation; }, any(),
      "delta_net: activation of queries and keys after the convolution; elu: elu + 1");
  table.field(
      "gate_low_rank", [](auto& c) -> auto& { return c.model.gate_low_rank; }, dimension(),
      "kda: rank of the projections of decay and output gate; null: the dimension of a head's value");
  table.field(
      "gate_lower_bound", [](auto& c) -> auto& { return c.model.gate_lower_bound; }, from_up_to_below(-5, 0),
      "kda: keeps the log decay above this bound by a sigmoid (-5 is usual); null: softplus, without bound");
  table.field(
      "safe_gate", [](auto& c) -> auto& { return c.model.safe_gate; }, any(),
      "kda: decay rates start at 1 instead of between 1 and 16; needs gate_lower_bound");
}

void add_attention(Table& table) {
  table.section("model.attention",
                "Softmax attention with rotary embedding: every layer of the backbone transformer, and the "
                "named layers of the other backbones in place of their mixer.");
  table.field(
      "layers", [](auto& c) -> auto& { return c.model.attention.layers; }, between(0, kLargestDimension),
      "Layers with attention, counted from 0; backbone transformer: empty, which means all");
  table.field(
      "num_heads", [](auto& c) -> auto& { return c.model.attention.num_heads; }, dimension(),
      "Heads of dimension hidden_size / num_heads; null: model.num_heads");
  table.field(
      "num_kv_heads", [](auto& c) -> auto& { return c.model.attention.num_kv_heads; }, dimension(),
      "Heads of keys and values, a divisor of the heads; null: as many");
  table.field(
      "window_size", [](auto& c) -> auto& { return c.model.attention.window_size; }, count(),
      "Tokens that a token sees, itself included; null: all before it");
  table.field(
      "rope_theta", [](auto& c) -> auto& { return c.model.attention.rope_theta; }, above(1),
      "Base of the rotary embedding");
  table.field(
      "qkv_bias", [](auto& c) -> auto& { return c.model.attention.qkv_bias; }, any(),
      "Biases on the projections of queries, keys and values");
  table.field(
      "qk_norm", [](auto& c) -> auto& { return c.model.attention.qk_norm; }, any(),
      "RMSNorm (eps 1e-5) of queries and keys per head");
}

void add_osdn(Table& table) {
  table.section(
      "model.osdn",
      "The preconditioned write: token t writes with the key d_t o k_t, then d moves by a step of step_size. "
      "Null or absent: the plain backbone.");
  table.field(
      "preset", [](auto& c) -> auto& { return c.model.osdn->preset; }, one_of(preset_names()),
      "A named set of the values below; the other keys of this section override it");
  table.field(
      "step_size", [](auto& c) -> auto& { return c.model.osdn->step_size; }, at_least(0),
      "eta, step of the preconditioner; 0 keeps d at its start");
  table.field(
      "box", [](auto& c) -> auto& { return c.model.osdn->box; }, at_least(0),
      "Smallest and largest entry of d, clipped at every token");
  table.field(
      "hypergradient", [](auto& c) -> auto& { return c.model.osdn->hypergradient; }, any(),
      "beta_aware: gradient of the loss after the write; beta_free: the same with beta = 1");
  table.field(
      "initial_scale", [](auto& c) -> auto& { return c.model.osdn->initial_scale; }, at_least(0),
      "Value of d0 at initialisation");
  table.field(
      "learn_initial_scale", [](auto& c) -> auto& { return c.model.osdn->learn_initial_scale; }, any(),
      "Train d0 (one entry a head and channel, never decayed)");
  table.field(
      "clamp_initial_scale", [](auto& c) -> auto& { return c.model.osdn->clamp_initial_scale; }, any(),
      "Use d0 clamped to the box, with zero gradient outside it");
  table.field(
      "retention", [](auto& c) -> auto& { return c.model.osdn->retention; }, any(),
      "What d keeps at every token: all, a constant share, the share of an own gate (APF) or of the state's "
      "gate");
  table.field(
      "retention_bias", [](auto& c) -> auto& { return c.model.osdn->retention_bias; }, between(-100, 100),
      "own_gate: initial bias of the gate; constant: its logit, so that r = sigmoid(retention_bias)");
  table.field(
      "anchored", [](auto& c) -> auto& { return c.model.osdn->anchored; }, any(),
      "Forget towards 1 instead of 0: 1 + r (d - 1) instead of r d");
  table.field(
      "divide_by_key_norm", [](auto& c) -> auto& { return c.model.osdn->divide_by_key_norm; }, any(),
      "Divide the step by the squared norm of the key + 1e-5");
  table.field(
      "detach", [](auto& c) -> auto& { return c.model.osdn->detach; }, any(), "Stop the gradient through d");
  table.field(
      "allow_unstable", [](auto& c) -> auto& { return c.model.osdn->allow_unstable; }, any(),
      "Permit box and step beyond the limits of stability (box[1] x beta <= 2, step_size x beta^2 <= 2)");
}

}  // namespace

void add_model(Table& table) {
  add_layers(table);
  add_attention(table);
  add_osdn(table);
}

}  // namespace osdn::config::detail
