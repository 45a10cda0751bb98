// What the tests of the delta rule's kernels give them, and the token recurrence and its reverse in float64
// (docs/ops/delta_rule.md eq. 1-3) of the same numbers.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/emulation/buffer.h"

namespace osdn::kernels::delta_rule_kernels_test {

using emulation_test::Buffer;
using emulation_test::Numbers;
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
  double upstream = 1;          // size of the gradients that come in
  double floor = -1;            // of the log-decays
  bool bf16_log_decay = false;  // with Gate::kChannel
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
  Halves q, k, v, write_key, d_o, bf16_log_decay;
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
        bf16_log_decay(q.size()),
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
    for (size_t i = 0; i < log_decay.size(); ++i) {
      log_decay[i] = static_cast<float>(options.floor * std::pow(uniform(random), 3));
      if (!options.bf16_log_decay) continue;
      bf16_log_decay[i] = __float2bfloat16(log_decay[i]);
      log_decay[i] = __bfloat162float(bf16_log_decay[i]);
    }
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

}  // namespace osdn::kernels::delta_rule_kernels_test
