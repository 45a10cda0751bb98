// The CUDA kernels of the delta rule, run on the CPU (tests/emulation/cuda_on_cpu.h), against the token
// recurrence and its reverse in float64 (docs/ops/delta_rule.md eq. 1-3).
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/delta_rule.h"
#include "kernels/delta_rule_channel.h"
#include "tests/emulation/buffer.h"
#include "tests/emulation/delta_rule_recurrence.h"
#include "tests/emulation/launch_checked.h"
#include "tests/support/catch.h"

namespace osdn::kernels::delta_rule_kernels_test {

using emulation_test::buffer_of;
using emulation_test::launch_checked;
using emulation_test::relative_error;
using emulation_test::SharedLimit;

void check_kernels(const Shape& shape, const Options& options) {
  CAPTURE(shape.tokens, shape.heads, shape.key_size, shape.value_size, static_cast<int>(options.gate),
          options.write_key, options.portable, options.upstream, options.floor, options.bf16_log_decay);
  const Problem problem(shape, options);
  const int K = shape.key_size;
  const int V = shape.value_size;
  const auto sequences = static_cast<int64_t>(problem.offsets.size()) - 1;
  std::vector<int64_t> order(sequences);  // by falling length
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return problem.length(a) > problem.length(b); });
  std::vector<int64_t> chunk_offsets = {0};
  std::vector<int64_t> chunk_sequences;
  for (int64_t i = 0; i < sequences; ++i) {
    chunk_sequences.resize(
        chunk_sequences.size() + (problem.length(i) + kDeltaRuleChunk - 1) / kDeltaRuleChunk, i);
    chunk_offsets.push_back(static_cast<int64_t>(chunk_sequences.size()));
  }
  const size_t chunks = chunk_sequences.size();
  const Buffer<int64_t> lists[] = {buffer_of(problem.offsets), buffer_of(order), buffer_of(chunk_offsets),
                                   buffer_of(chunk_sequences)};
  const size_t matrices = chunks * shape.heads;
  const size_t KP = delta_rule_padded_key_size(K);
  const size_t VP = delta_rule_padded_value_size(V);
  const auto rows = [&](const Halves& x, int size) {
    return DeltaRuleRows{.data = x.get(), .token_stride = int64_t{shape.heads} * size, .head_stride = size};
  };
  const DeltaRuleInputs in{.shape = {.offsets = lists[0].get(),
                                     .order = lists[1].get(),
                                     .chunk_offsets = lists[2].get(),
                                     .chunk_sequences = lists[3].get(),
                                     .num_tokens = shape.tokens,
                                     .num_sequences = sequences,
                                     .num_chunks = static_cast<int64_t>(chunks),
                                     .num_key_heads = shape.heads,
                                     .num_value_heads = shape.heads,
                                     .key_size = K,
                                     .value_size = V},
                           .q = rows(problem.q, K),
                           .k = rows(problem.k, K),
                           .v = rows(problem.v, V),
                           .write_key = options.write_key ? rows(problem.write_key, K) : DeltaRuleRows{},
                           .beta = problem.beta.get(),
                           .log_decay = options.gate == Gate::kScalar ? problem.log_decay.get() : nullptr,
                           .scale = static_cast<float>(problem.scale),
                           .portable = options.portable};
  const Floats q_rstd(problem.rows), k_rstd(problem.rows), inverse_scale(matrices), gates(matrices * 192);
  const Buffer<__half> inverse(matrices * 2 * kDeltaRuleTriangle);
  const Halves pairs(matrices * kDeltaRuleTriangle), key_pairs(matrices * kDeltaRuleTriangle);
  const DeltaRulePrepared prepared{.q_rstd = q_rstd.get(),
                                   .k_rstd = k_rstd.get(),
                                   .inverse = inverse.get(),
                                   .inverse_scale = inverse_scale.get(),
                                   .pairs = pairs.get(),
                                   .gates = gates.get(),
                                   .key_pairs = key_pairs.get()};
  // With a decay by channel the scans get rows that carry it.
  const bool by_channel = options.gate == Gate::kChannel;
  const bool bf16 = options.bf16_log_decay;
  const void* log_decay = problem.log_decay.get();
  if (bf16) log_decay = problem.bf16_log_decay.get();
  const Halves decayed_q(problem.q.size()), decayed_k(problem.q.size()), decayed_w(problem.q.size());
  const Floats chunk_decay(matrices * KP);
  const Buffer<int> anchored(matrices);
  DeltaRuleInputs scanned = in;
  if (by_channel) {
    scanned.q = rows(decayed_q, K);
    scanned.k = rows(decayed_k, K);
    scanned.write_key = rows(decayed_w, K);
    launch_checked(DeltaRuleChannelPrepareArgs{.in = in,
                                               .log_decay = log_decay,
                                               .bf16_log_decay = bf16,
                                               .normalize = true,
                                               .out = prepared,
                                               .q = decayed_q.get(),
                                               .k = decayed_k.get(),
                                               .write_key = decayed_w.get(),
                                               .chunk_decay = chunk_decay.get(),
                                               .anchored = anchored.get()});
  } else {
    launch_checked(DeltaRulePrepareArgs{.in = in, .out = prepared, .normalize = true});
  }
  const Halves o(problem.v.size()), error(matrices * VP * kDeltaRuleChunk), solved(error.size());
  const Halves states(matrices * VP * KP), d_states(states.size());
  const Floats final_state(problem.state_size), d_initial(problem.state_size);
  launch_checked(DeltaRuleForwardArgs{.in = scanned,
                                      .prepared = prepared,
                                      .initial_state = options.zero_state ? nullptr : problem.initial.get(),
                                      .chunk_decay = by_channel ? chunk_decay.get() : nullptr,
                                      .o = o.get(),
                                      .final_state = final_state.get(),
                                      .error = error.get(),
                                      .states = states.get()});
  launch_checked(DeltaRuleBackwardScanArgs{.in = scanned,
                                           .prepared = prepared,
                                           .d_o = rows(problem.d_o, V),
                                           .d_final = problem.d_final.get(),
                                           .chunk_decay = by_channel ? chunk_decay.get() : nullptr,
                                           .solved = solved.get(),
                                           .d_states = d_states.get(),
                                           .d_initial = d_initial.get()});
  const Halves d_q(problem.q.size()), d_k(problem.q.size()), d_v(problem.v.size());
  const Halves d_write_key(problem.q.size()), bf16_d_log_decay(bf16 ? problem.q.size() : 0);
  const Floats d_beta(problem.rows), d_log_decay(problem.log_decay.size());
  if (by_channel) {
    launch_checked(DeltaRuleChannelGradientsArgs{
        .in = in,
        .log_decay = log_decay,
        .bf16_log_decay = bf16,
        .normalize = true,
        .initial_state = !options.zero_state,
        .d_o = rows(problem.d_o, V),
        .q_rstd = q_rstd.get(),
        .k_rstd = k_rstd.get(),
        .chunk_decay = chunk_decay.get(),
        .anchored = anchored.get(),
        .error = error.get(),
        .states = states.get(),
        .solved = solved.get(),
        .d_states = d_states.get(),
        .d_q = d_q.get(),
        .d_k = d_k.get(),
        .d_v = d_v.get(),
        .d_write_key = options.write_key ? d_write_key.get() : nullptr,
        .d_beta = d_beta.get(),
        .d_log_decay = bf16 ? static_cast<void*>(bf16_d_log_decay.get()) : d_log_decay.get()});
  } else {
    launch_checked(
        DeltaRuleBackwardGradientsArgs{.in = in,
                                       .prepared = prepared,
                                       .d_o = rows(problem.d_o, V),
                                       .error = error.get(),
                                       .states = states.get(),
                                       .solved = solved.get(),
                                       .d_states = d_states.get(),
                                       .normalize = true,
                                       .d_q = d_q.get(),
                                       .d_k = d_k.get(),
                                       .d_v = d_v.get(),
                                       .d_write_key = options.write_key ? d_write_key.get() : nullptr,
                                       .d_beta = d_beta.get(),
                                       .d_log_decay = d_log_decay.get()});
  }
  const auto check = [](const std::string& name, const Numbers& actual, const Numbers& expected) {
    INFO(name);
    CHECK(relative_error(actual, expected) <= 1e-2);  // NaN fails
  };
  check("o", o.numbers(), problem.o);
  check("final_state", final_state.numbers(), problem.final_state);
  check("d_q", d_q.numbers(), problem.d_q);
  check("d_k", d_k.numbers(), problem.d_k);
  check("d_v", d_v.numbers(), problem.d_v);
  check("d_beta", d_beta.numbers(), problem.d_beta);
  check("d_initial", d_initial.numbers(), problem.d_initial);
  if (options.write_key) check("d_write_key", d_write_key.numbers(), problem.d_write_key);
  if (options.gate == Gate::kNone) return;
  const Numbers of_decay = bf16 ? bf16_d_log_decay.numbers() : d_log_decay.numbers();
  check("d_log_decay", of_decay, problem.d_log_decay);
  // What no decay acts on is exactly 0, not the rounding of sums that cancel.
  const size_t per_token = of_decay.size() / shape.tokens;
  for (size_t sequence = 0; options.zero_state && sequence + 1 < problem.offsets.size(); ++sequence)
    for (size_t i = 0; problem.length(static_cast<int64_t>(sequence)) > 0 && i < per_token; ++i)
      CHECK(of_decay[problem.offsets[sequence] * per_token + i] == 0);
  for (size_t i = per_token * options.loss_tokens; options.loss_tokens >= 0 && i < of_decay.size(); ++i)
    CHECK(of_decay[i] == 0);
}

TEST_CASE("the kernels for any device equal the recurrence and its gradients", "[delta_rule_kernels]") {
  const Gate gate = GENERATE(Gate::kNone, Gate::kScalar, Gate::kChannel);
  const bool write_key = GENERATE(false, true);
  check_kernels({.tokens = 70, .heads = 1, .key_size = 64, .value_size = 64},
                {.gate = gate, .write_key = write_key, .portable = true});
}

TEST_CASE("the kernels on warpgroups equal the recurrence and its gradients", "[delta_rule_kernels]") {
  const Gate gate = GENERATE(Gate::kNone, Gate::kScalar, Gate::kChannel);
  const bool write_key = GENERATE(false, true);
  check_kernels({.tokens = 70, .heads = 1, .key_size = 128, .value_size = 128},
                {.gate = gate, .write_key = write_key});
}

TEST_CASE("odd sizes, several heads and a single token go through the kernels", "[delta_rule_kernels]") {
  const Gate gate = GENERATE(Gate::kScalar, Gate::kChannel);
  // A single token in many heads: the gradient of beta is one number a head, whose terms may happen to
  // cancel.
  const Shape shape = GENERATE(Shape{9, 2, 96, 80}, Shape{1, 12, 16, 48}, Shape{65, 1, 128, 256});
  check_kernels(shape, {.gate = gate, .write_key = true});
}

TEST_CASE("stages of shared memory come around, and packed sequences end within them",
          "[delta_rule_kernels]") {
  const Gate gate = GENERATE(Gate::kNone, Gate::kScalar, Gate::kChannel);
  const bool portable = GENERATE(false, true);
  // Three stages, of the portable kernels two, and a sequence of eight chunks; beside it one with fewer
  // chunks than stages, an empty one, single tokens and a whole chunk.
  check_kernels({.tokens = 660, .heads = 1, .key_size = 32, .value_size = 64},
                {.gate = gate,
                 .write_key = gate != Gate::kNone,
                 .portable = portable,
                 .cuts = {1, 1, 66, 130, 131, 195}});
}

TEST_CASE("key heads above 128 go through the kernels", "[delta_rule_kernels]") {
  const Gate gate = GENERATE(Gate::kNone, Gate::kScalar, Gate::kChannel);
  const bool write_key = GENERATE(false, true);
  const Shape shape = GENERATE(Shape{70, 1, 256, 64}, Shape{66, 1, 192, 144});
  check_kernels(shape, {.gate = gate, .write_key = write_key});
}

TEST_CASE("99 KB of shared memory a block are enough for the kernels for any device, for keys up to 128",
          "[delta_rule_kernels][emulated_device]") {
  const SharedLimit limit(99 * 1024);
  CHECK(!delta_rule_takes_wide_keys());
  const Gate gate = GENERATE(Gate::kNone, Gate::kScalar, Gate::kChannel);
  check_kernels({.tokens = 66, .heads = 1, .key_size = 128, .value_size = 128},
                {.gate = gate, .write_key = true, .portable = true});
}

TEST_CASE("163 KB of shared memory a block, as compute capability 8.0 has, are enough for keys above 128",
          "[delta_rule_kernels][emulated_device]") {
  const SharedLimit limit(163 * 1024);
  CHECK(delta_rule_takes_wide_keys());
  // Value heads of one, two and three tiles.
  const int value_size = GENERATE(128, 256, 272);
  const Gate gate = GENERATE(Gate::kScalar, Gate::kChannel);
  if (gate == Gate::kChannel && value_size > kDeltaRuleChannelValueSize) return;
  check_kernels({.tokens = 66, .heads = 1, .key_size = 256, .value_size = value_size},
                {.gate = gate, .write_key = true});
}

TEST_CASE("gradients as small as 1e-8 and as large as 1e6 keep their digits", "[delta_rule_kernels]") {
  const Gate gate = GENERATE(Gate::kScalar, Gate::kChannel);
  const double upstream = GENERATE(1e-8, 1e6);
  check_kernels({.tokens = 70, .heads = 1, .key_size = 64, .value_size = 64},
                {.gate = gate, .write_key = true, .upstream = upstream});
}

TEST_CASE("strong decays go through the kernels", "[delta_rule_kernels]") {
  const Gate gate = GENERATE(Gate::kScalar, Gate::kChannel);
  const double floor = GENERATE(-5.0, -27.0);
  // Most of the gradient of beta is one number a head, the last token's, whose terms may happen to cancel.
  const Shape shape = GENERATE(Shape{70, 1, 64, 64}, Shape{70, 3, 144, 64});
  check_kernels(shape, {.gate = gate, .floor = floor});
}

TEST_CASE("log-decays by channel may be bf16, and so are their gradients then", "[delta_rule_kernels]") {
  const double floor = GENERATE(-1.0, -5.0, -27.0);
  const Shape shape = GENERATE(Shape{70, 1, 128, 128}, Shape{70, 2, 96, 48}, Shape{70, 1, 64, 144},
                               Shape{70, 2, 144, 128}, Shape{70, 1, 256, 144});
  const bool portable = GENERATE(false, true);
  check_kernels(shape, {.gate = Gate::kChannel,
                        .write_key = shape.heads > 1,
                        .portable = portable,
                        .floor = floor,
                        .bf16_log_decay = true,
                        .zero_state = floor < -1,
                        .cuts = {3}});
}

TEST_CASE("what a chunk's decays leave of a gradient keeps its digits", "[delta_rule_kernels]") {
  // All that reaches the initial state has decayed by e^-30 or more, differently on its way through each
  // token.
  const bool portable = GENERATE(true, false);
  const double floor = GENERATE(-2.0, -3.0);
  check_kernels({.tokens = 64, .heads = 2, .key_size = 128, .value_size = 64},
                {.gate = Gate::kChannel, .portable = portable, .floor = floor, .output_loss = false});
}

TEST_CASE("a decay that nothing depends on has a gradient of exactly 0", "[delta_rule_kernels]") {
  const bool portable = GENERATE(true, false);
  const int loss_tokens = GENERATE(14, 64, 69);
  check_kernels(
      {.tokens = 70, .heads = 1, .key_size = 128, .value_size = 64},
      {.gate = Gate::kScalar, .portable = portable, .loss_tokens = loss_tokens, .zero_state = true});
}

TEST_CASE("the decay of a sequence's first token has a gradient of exactly 0 where there was no state",
          "[delta_rule_kernels]") {
  const Gate gate = GENERATE(Gate::kScalar, Gate::kChannel);
  const int key_size = GENERATE(64, 128);
  const double floor = GENERATE(-1.0, -27.0);
  check_kernels({.tokens = 140, .heads = 2, .key_size = key_size, .value_size = 64},
                {.gate = gate, .floor = floor, .zero_state = true, .cuts = {66, 66, 139}});
}

}  // namespace osdn::kernels::delta_rule_kernels_test
