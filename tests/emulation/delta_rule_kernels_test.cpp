// The CUDA kernels of the delta rule, run on the CPU (tests/emulation/cuda_on_cpu.h), against the token
// recurrence and its reverse in float64 (docs/ops/delta_rule.md eq. 1-3).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/delta_rule.h"
#include "kernels/delta_rule_channel.h"
#include "tests/emulation/buffer.h"
#include "tests/emulation/launch_checked.h"
#include "tests/support/catch.h"

namespace osdn::kernels::delta_rule_kernels_test {

using emulation_test::Buffer;
using emulation_test::buffer_of;
using emulation_test::launch_checked;
using emulation_test::Numbers;
using emulation_test::relative_error;
using emulation_test::SharedLimit;
using Halves = Buffer<__nv_bfloat16>;
using Floats = Buffer<float>;

struct Shape {
  int tokens, heads, key_size, value_size;
};
enum class Gate { kNone, kScalar, kChannel };
struct Options {
  Gate gate = Gate::kNone;
  bool write_key = false;
  bool portable = false;
  double upstream = 1;   // size of the gradients that come in
  double floor = -1;     // of the log-decays
  int loss_tokens = -1;  // the first of the sequence that the loss depends on; -1: all, and the final state
  bool output_loss = true;     // that the loss depends on any token's output
  bool zero_state = false;     // before the first token
  std::vector<int> cuts = {};  // tokens where further sequences begin
};

/// Packed sequences. Inputs, and what the recurrence makes of them.
struct Problem {
  Shape shape;
  Options options;
  std::vector<int64_t> offsets;  // [S + 1]
  size_t rows;                   // tokens times heads
  size_t state_size;             // of all sequences
  Halves q, k, v, write_key, d_o;
  Floats beta, log_decay, initial, d_final;
  double scale = 0.1;
  // Expected.
  Numbers o, final_state, d_q, d_k, d_v, d_write_key, d_beta, d_log_decay, d_initial;

  Problem(const Shape& given, const Options& of)
      : shape(given),
        options(of),
        offsets(1, 0),
        rows(static_cast<size_t>(given.tokens) * given.heads),
        state_size((of.cuts.size() + 1) * given.heads * given.key_size * given.value_size),
        q(rows * given.key_size),
        k(q.size()),
        v(rows * given.value_size),
        write_key(q.size()),
        d_o(v.size()),
        beta(rows),
        log_decay(of.gate == Gate::kChannel ? q.size() : rows),
        initial(state_size),
        d_final(state_size) {
    offsets.insert(offsets.end(), options.cuts.begin(), options.cuts.end());
    offsets.push_back(shape.tokens);
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> uniform;
    for (const Halves* x : {&q, &k, &v})
      for (size_t i = 0; i < x->size(); ++i) (*x)[i] = __float2bfloat16(static_cast<float>(normal(random)));
    for (size_t i = 0; i < d_o.size(); ++i)
      d_o[i] = __float2bfloat16(static_cast<float>(normal(random) * options.upstream));
    for (size_t i = 0; i < state_size; ++i) {
      initial[i] = static_cast<float>(normal(random));
      d_final[i] = static_cast<float>(normal(random) * options.upstream);
    }
    for (size_t i = 0; !options.output_loss && i < d_o.size(); ++i) d_o[i] = __float2bfloat16(0.0f);
    if (options.loss_tokens >= 0) {
      for (size_t i = static_cast<size_t>(options.loss_tokens) * shape.heads * shape.value_size;
           i < d_o.size(); ++i)
        d_o[i] = __float2bfloat16(0.0f);
      for (size_t i = 0; i < state_size; ++i) d_final[i] = 0.0f;
    }
    for (size_t i = 0; options.zero_state && i < state_size; ++i) initial[i] = 0.0f;
    for (size_t row = 0; row < rows; ++row) {
      beta[row] = static_cast<float>(1 / (1 + std::exp(-normal(random))));
      const double norm = std::sqrt(squares(k, row));
      for (size_t i = row * shape.key_size; i < (row + 1) * shape.key_size; ++i)
        write_key[i] = __float2bfloat16(
            static_cast<float>(__bfloat162float(k[i]) / norm * (0.6 + 0.8 * uniform(random))));
    }
    for (size_t i = 0; i < log_decay.size(); ++i)
      log_decay[i] = static_cast<float>(options.floor * std::pow(uniform(random), 3));
    o.resize(v.size());
    d_v.resize(v.size());
    for (Numbers* x : {&d_q, &d_k, &d_write_key}) x->resize(q.size());
    d_beta.resize(rows);
    d_log_decay.resize(log_decay.size());
    for (Numbers* x : {&final_state, &d_initial}) x->resize(state_size);
    for (size_t sequence = 0; sequence + 1 < offsets.size(); ++sequence)
      for (int head = 0; head < shape.heads; ++head) recur(sequence, head);
  }

  int64_t length(int64_t sequence) const { return offsets[sequence + 1] - offsets[sequence]; }

 private:
  double squares(const Halves& x, size_t row) const {
    double sum = 1e-6;
    for (size_t i = row * shape.key_size; i < (row + 1) * shape.key_size; ++i)
      sum += std::pow(static_cast<double>(__bfloat162float(x[i])), 2);
    return sum;
  }

  void recur(size_t sequence, int head) {
    const int K = shape.key_size;
    const int V = shape.value_size;
    const auto begin = static_cast<int>(offsets[sequence]);
    const auto end = static_cast<int>(offsets[sequence + 1]);
    const size_t own_state = (sequence * shape.heads + head) * K * V;
    const auto at = [&](int token) { return static_cast<size_t>(token) * shape.heads + head; };
    const auto row_of = [&](const Halves& x, int token, double factor) {
      Numbers out(K);
      for (int i = 0; i < K; ++i) out[i] = __bfloat162float(x[at(token) * K + i]) * factor;
      return out;
    };
    const auto unit = [&](const Halves& x, int token) {
      return row_of(x, token, 1 / std::sqrt(squares(x, at(token))));
    };
    const auto writing = [&](int token) {
      return options.write_key ? row_of(write_key, token, 1) : unit(k, token);
    };
    const auto gate_at = [&](int token, int i) {
      return options.gate == Gate::kChannel ? at(token) * K + i : at(token);
    };
    const auto decay = [&](int token, int i) {
      return options.gate == Gate::kNone ? 1.0 : std::exp(double{log_decay[gate_at(token, i)]});
    };

    Numbers state(initial.host() + own_state, initial.host() + own_state + K * V);
    std::vector<Numbers> decayed(shape.tokens);  // states that the errors are measured against
    std::vector<Numbers> after(shape.tokens);
    std::vector<Numbers> errors(shape.tokens, Numbers(V));
    for (int t = begin; t < end; ++t) {
      const Numbers key = unit(k, t);
      const Numbers query = unit(q, t);
      const Numbers w = writing(t);
      for (int i = 0; i < K; ++i)
        for (int j = 0; j < V; ++j) state[i * V + j] *= decay(t, i);
      decayed[t] = state;
      for (int j = 0; j < V; ++j) {
        double error = __bfloat162float(v[at(t) * V + j]);
        for (int i = 0; i < K; ++i) error -= state[i * V + j] * key[i];
        errors[t][j] = error;
      }
      for (int i = 0; i < K; ++i)
        for (int j = 0; j < V; ++j) state[i * V + j] += w[i] * beta[at(t)] * errors[t][j];
      after[t] = state;
      for (int j = 0; j < V; ++j)
        for (int i = 0; i < K; ++i) o[at(t) * V + j] += scale * state[i * V + j] * query[i];
    }
    std::copy(state.begin(), state.end(), final_state.begin() + own_state);

    Numbers d_state(d_final.host() + own_state, d_final.host() + own_state + K * V);
    for (int t = end - 1; t >= begin; --t) {
      const size_t row = at(t);
      const Numbers key = unit(k, t);
      const Numbers query = unit(q, t);
      const Numbers w = writing(t);
      Numbers d_query(K), d_key(K), d_w(K), d_written(V);
      for (int i = 0; i < K; ++i)
        for (int j = 0; j < V; ++j) {
          const double upstream = __bfloat162float(d_o[row * V + j]);
          d_query[i] += scale * after[t][i * V + j] * upstream;
          d_state[i * V + j] += scale * query[i] * upstream;
        }
      for (int i = 0; i < K; ++i)
        for (int j = 0; j < V; ++j) {
          d_w[i] += d_state[i * V + j] * beta[row] * errors[t][j];
          d_written[j] += d_state[i * V + j] * w[i];
        }
      for (int j = 0; j < V; ++j) {
        d_beta[row] += d_written[j] * errors[t][j];
        d_v[row * V + j] = beta[row] * d_written[j];
      }
      for (int i = 0; i < K; ++i)
        for (int j = 0; j < V; ++j) {
          d_key[i] -= decayed[t][i * V + j] * d_v[row * V + j];
          d_state[i * V + j] -= key[i] * d_v[row * V + j];
        }
      for (int i = 0; i < K; ++i)
        for (int j = 0; j < V; ++j) {
          d_log_decay[gate_at(t, i)] += d_state[i * V + j] * decayed[t][i * V + j];
          d_state[i * V + j] *= decay(t, i);
        }
      for (int i = 0; i < K; ++i) {
        d_write_key[row * K + i] = d_w[i];
        if (!options.write_key) d_key[i] += d_w[i];
      }
      through_norm(d_query, query, std::sqrt(squares(q, row)), &d_q[row * K]);
      through_norm(d_key, key, std::sqrt(squares(k, row)), &d_k[row * K]);
    }
    std::copy(d_state.begin(), d_state.end(), d_initial.begin() + own_state);
  }

  static void through_norm(const Numbers& d_unit, const Numbers& unit, double norm, double* out) {
    double along = 0;
    for (size_t i = 0; i < unit.size(); ++i) along += unit[i] * d_unit[i];
    for (size_t i = 0; i < unit.size(); ++i) out[i] = (d_unit[i] - unit[i] * along) / norm;
  }
};

void check_kernels(const Shape& shape, const Options& options) {
  CAPTURE(shape.tokens, shape.heads, shape.key_size, shape.value_size, static_cast<int>(options.gate),
          options.write_key, options.portable, options.upstream, options.floor);
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
  const Halves decayed_q(problem.q.size()), decayed_k(problem.q.size()), decayed_w(problem.q.size());
  const Floats chunk_decay(matrices * KP);
  const Buffer<int> anchored(matrices);
  DeltaRuleInputs scanned = in;
  if (by_channel) {
    scanned.q = rows(decayed_q, K);
    scanned.k = rows(decayed_k, K);
    scanned.write_key = rows(decayed_w, K);
    launch_checked(DeltaRuleChannelPrepareArgs{.in = in,
                                               .log_decay = problem.log_decay.get(),
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
  const Halves d_write_key(problem.q.size());
  const Floats d_beta(problem.rows), d_log_decay(problem.log_decay.size());
  if (by_channel) {
    launch_checked(
        DeltaRuleChannelGradientsArgs{.in = in,
                                      .log_decay = problem.log_decay.get(),
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
                                      .d_log_decay = d_log_decay.get()});
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
  check("d_log_decay", d_log_decay.numbers(), problem.d_log_decay);
  // What no decay acts on is exactly 0, not the rounding of sums that cancel.
  const size_t per_token = d_log_decay.size() / shape.tokens;
  for (size_t sequence = 0; options.zero_state && sequence + 1 < problem.offsets.size(); ++sequence)
    for (size_t i = 0; problem.length(static_cast<int64_t>(sequence)) > 0 && i < per_token; ++i)
      CHECK(d_log_decay[problem.offsets[sequence] * per_token + i] == 0);
  for (size_t i = per_token * options.loss_tokens; options.loss_tokens >= 0 && i < d_log_decay.size(); ++i)
    CHECK(d_log_decay[i] == 0);
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
  const Gate gate = GENERATE(Gate::kNone, Gate::kScalar);
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
  check_kernels({.tokens = 66, .heads = 1, .key_size = 256, .value_size = value_size},
                {.gate = Gate::kScalar, .write_key = true});
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
  check_kernels({.tokens = 70, .heads = 1, .key_size = 64, .value_size = 64}, {.gate = gate, .floor = floor});
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
