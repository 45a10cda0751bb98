#include <algorithm>
#include <vector>

#include "base/vector_code.h"
#include "ops/detail/short_conv_paths.h"
#include "ops/detail/simd_math.h"
#include "tensor/torch.h"

namespace osdn::ops::short_conv_detail {
namespace {

// Tokens whose share of the tap gradient one task sums: fixed, so that the bits do not depend on the number
// of threads.
constexpr int64_t kTokensPerTask = 128;

/// The taps' inputs of one token, oldest first: rows of x, of the history, or zeros. Every thread works on
/// its own copy.
template <typename T>
class Window {
 public:
  explicit Window(const Inputs& in)
      : num_taps_(in.taps.size(0)),
        width_(in.x.size(1)),
        x_(in.x.const_data_ptr<T>()),
        zeros_(static_cast<size_t>(width_)),
        rows_(static_cast<size_t>(num_taps_)) {
    if (!in.history.defined()) return;
    history_ = in.history.transpose(1, 2).contiguous();
    history_data_ = history_.const_data_ptr<T>();
  }

  /// The window of token `t` of sequence `s`, which begins at `begin`.
  const T* const* at(int64_t s, int64_t begin, int64_t t) {
    for (int64_t tap = 0; tap < num_taps_; ++tap) {
      const int64_t from = t - (num_taps_ - 1) + tap;
      rows_[static_cast<size_t>(tap)] =
          from >= begin ? x_ + from * width_ : history_row(s, num_taps_ + from - begin);
    }
    return rows_.data();
  }

  const T* history_row(int64_t s, int64_t slot) const {
    return history_data_ ? history_data_ + (s * num_taps_ + slot) * width_ : zeros_.data();
  }

 private:
  int64_t num_taps_;
  int64_t width_;
  const T* x_;                  // [N, D]
  std::vector<T> zeros_;        // [D]
  std::vector<const T*> rows_;  // [W]
  at::Tensor history_;          // [S, W, D]
  const T* history_data_ = nullptr;
};

// out[c] = act(sum_w taps[w, c] rows[w][c]); the usual four taps in one pass.
template <bool kSilu, typename T>
[[gnu::always_inline]] inline void filter_row(int64_t num_taps, int64_t width, const T* __restrict taps,
                                              const T* const* rows, T* __restrict out) {
  if (num_taps == 4) {
    const T* __restrict r0 = rows[0];
    const T* __restrict r1 = rows[1];
    const T* __restrict r2 = rows[2];
    const T* __restrict r3 = rows[3];
    for (int64_t c = 0; c < width; ++c) {
      const T sum = taps[c] * r0[c] + taps[width + c] * r1[c] + taps[2 * width + c] * r2[c] +
                    taps[3 * width + c] * r3[c];
      out[c] = kSilu ? simd::silu(sum) : sum;
    }
    return;
  }
  std::fill(out, out + width, T(0));
  for (int64_t tap = 0; tap < num_taps; ++tap) {
    const T* __restrict row = rows[tap];
    const T* __restrict factor = taps + tap * width;
    for (int64_t c = 0; c < width; ++c) out[c] += factor[c] * row[c];
  }
  if (kSilu)
    for (int64_t c = 0; c < width; ++c) out[c] = simd::silu(out[c]);
}

// One token of the backward: dsum from dy (eq. 3; dy itself without SiLU), and its share of the tap gradients
// (eq. 5).
template <bool kSilu, typename T>
[[gnu::always_inline]] inline void backward_row(int64_t num_taps, int64_t width, const T* __restrict taps,
                                                const T* const* rows, const T* __restrict dy,
                                                T* __restrict dsum, T* __restrict dtaps) {
  if (num_taps == 4) {
    const T* __restrict r0 = rows[0];
    const T* __restrict r1 = rows[1];
    const T* __restrict r2 = rows[2];
    const T* __restrict r3 = rows[3];
    for (int64_t c = 0; c < width; ++c) {
      T d = dy[c];
      if (kSilu) {
        const T sum = taps[c] * r0[c] + taps[width + c] * r1[c] + taps[2 * width + c] * r2[c] +
                      taps[3 * width + c] * r3[c];
        d *= simd::silu_slope(sum);
        dsum[c] = d;
      }
      dtaps[c] += d * r0[c];
      dtaps[width + c] += d * r1[c];
      dtaps[2 * width + c] += d * r2[c];
      dtaps[3 * width + c] += d * r3[c];
    }
    return;
  }
  const T* d = dy;
  if (kSilu) {
    filter_row<false>(num_taps, width, taps, rows, dsum);
    for (int64_t c = 0; c < width; ++c) dsum[c] = dy[c] * simd::silu_slope(dsum[c]);
    d = dsum;
  }
  for (int64_t tap = 0; tap < num_taps; ++tap)
    for (int64_t c = 0; c < width; ++c) dtaps[tap * width + c] += d[c] * rows[tap][c];
}

// Calls visit(s, begin, end, t) for the tokens [first, last) with the sequence that each belongs to.
template <typename Visit>
[[gnu::always_inline]] inline void for_each_token(const std::vector<int64_t>& offsets, int64_t first,
                                                  int64_t last, Visit visit) {
  if (first >= last) return;
  int64_t s = std::upper_bound(offsets.begin(), offsets.end(), first) - offsets.begin() - 1;
  for (int64_t t = first; t < last; ++t) {
    while (t >= offsets[static_cast<size_t>(s) + 1]) ++s;
    visit(s, offsets[static_cast<size_t>(s)], offsets[static_cast<size_t>(s) + 1], t);
  }
}

template <bool kSilu, typename T>
Outputs forward_rows(const Inputs& in) {
  const std::vector<int64_t>& offsets = in.sequences->host_offsets();
  const int64_t num_tokens = in.x.size(0);
  const int64_t width = in.x.size(1);
  const int64_t num_taps = in.taps.size(0);
  const int64_t num_sequences = in.sequences->num_sequences();
  Outputs out{.y = at::empty_like(in.x),
              .final_state = at::empty({num_sequences, width, num_taps}, in.x.options())};
  const T* taps = in.taps.const_data_ptr<T>();             // [W, D]
  T* y = out.y.mutable_data_ptr<T>();                      // [N, D]
  T* final_state = out.final_state.mutable_data_ptr<T>();  // [S, D, W]
  const Window<T> prototype(in);
  at::parallel_for(0, num_tokens, kTokensPerTask, [&](int64_t first, int64_t last) {
    Window<T> window = prototype;
    run_vectorized([&]() __attribute__((always_inline)) {
      for_each_token(
          offsets, first,
          last, [&](int64_t s, int64_t begin, int64_t, int64_t t) __attribute__((always_inline)) {
            filter_row<kSilu>(num_taps, width, taps, window.at(s, begin, t), y + t * width);  // (eq. 1, 2)
          });
    });
  });
  for (int64_t s = 0; s < num_sequences; ++s) {
    const int64_t begin = offsets[static_cast<size_t>(s)];
    const int64_t end = offsets[static_cast<size_t>(s) + 1];
    for (int64_t slot = 0; slot < num_taps; ++slot) {
      const int64_t from = end - num_taps + slot;
      const T* row = from >= begin ? in.x.const_data_ptr<T>() + from * width
                                   : prototype.history_row(s, num_taps + from - begin);
      for (int64_t c = 0; c < width; ++c) final_state[(s * width + c) * num_taps + slot] = row[c];
    }
  }
  return out;
}

// dsum [N, D] (eq. 3), not written without SiLU, and the tap gradient (eq. 5).
template <bool kSilu, typename T>
at::Tensor backward_taps(const Inputs& in, const T* dy, T* dsum) {
  const std::vector<int64_t>& offsets = in.sequences->host_offsets();
  const int64_t num_tokens = in.x.size(0);
  const int64_t width = in.x.size(1);
  const int64_t num_taps = in.taps.size(0);
  const int64_t tasks = (num_tokens + kTokensPerTask - 1) / kTokensPerTask;
  const T* taps = in.taps.const_data_ptr<T>();
  const at::Tensor partial = at::zeros({tasks, num_taps, width}, in.x.options());
  T* sums = partial.mutable_data_ptr<T>();
  const Window<T> prototype(in);
  at::parallel_for(0, tasks, 1, [&](int64_t first_task, int64_t last_task) {
    Window<T> window = prototype;
    run_vectorized([&]() __attribute__((always_inline)) {
      for (int64_t task = first_task; task < last_task; ++task) {
        T* sum = sums + task * num_taps * width;
        const int64_t last = std::min(num_tokens, (task + 1) * kTokensPerTask);
        for_each_token(
            offsets, task * kTokensPerTask,
            last, [&](int64_t s, int64_t begin, int64_t, int64_t t) __attribute__((always_inline)) {
              backward_row<kSilu>(num_taps, width, taps, window.at(s, begin, t), dy + t * width,
                                  dsum + t * width, sum);
            });
      }
    });
  });
  at::Tensor dtaps = at::zeros({num_taps, width}, in.x.options());
  T* total = dtaps.mutable_data_ptr<T>();
  for (int64_t task = 0; task < tasks; ++task)
    for (int64_t i = 0; i < num_taps * width; ++i) total[i] += sums[task * num_taps * width + i];
  return dtaps;
}

template <typename T>
void add_final_state_gradient(const Inputs& in, const T* dfinal, T* dx, T* dhistory) {
  const std::vector<int64_t>& offsets = in.sequences->host_offsets();
  const int64_t width = in.x.size(1);
  const int64_t num_taps = in.taps.size(0);
  for (int64_t s = 0; s < in.sequences->num_sequences(); ++s) {
    const int64_t length = offsets[static_cast<size_t>(s) + 1] - offsets[static_cast<size_t>(s)];
    for (int64_t slot = 0; slot < num_taps; ++slot) {
      const int64_t from = length - num_taps + slot;  // position in the sequence; negative: history
      if (from < 0 && !dhistory) continue;
      for (int64_t c = 0; c < width; ++c) {
        const T d = dfinal[(s * width + c) * num_taps + slot];
        if (from >= 0)
          dx[(offsets[static_cast<size_t>(s)] + from) * width + c] += d;
        else
          dhistory[(s * width + c) * num_taps + num_taps + from] += d;
      }
    }
  }
}

// What the first W-1 tokens of each sequence send back to its history slots (eq. 4 at negative positions).
template <typename T>
void add_history_gradient(const Inputs& in, const T* dsum, T* dhistory) {
  const std::vector<int64_t>& offsets = in.sequences->host_offsets();
  const int64_t width = in.x.size(1);
  const int64_t num_taps = in.taps.size(0);
  const T* taps = in.taps.const_data_ptr<T>();
  for (int64_t s = 0; s < in.sequences->num_sequences(); ++s) {
    const int64_t begin = offsets[static_cast<size_t>(s)];
    const int64_t length = std::min(offsets[static_cast<size_t>(s) + 1] - begin, num_taps - 1);
    for (int64_t t = 0; t < length; ++t)
      for (int64_t tap = 0; tap < num_taps - 1 - t; ++tap)
        for (int64_t c = 0; c < width; ++c)
          dhistory[(s * width + c) * num_taps + t + 1 + tap] +=
              taps[tap * width + c] * dsum[(begin + t) * width + c];
  }
}

template <bool kSilu, typename T>
Gradients backward_rows(const Inputs& in, const at::Tensor& dy, const at::Tensor& dfinal) {
  const std::vector<int64_t>& offsets = in.sequences->host_offsets();
  const int64_t width = in.x.size(1);
  const int64_t num_taps = in.taps.size(0);
  const at::Tensor dsum_of_tokens = kSilu ? at::empty_like(in.x) : dy;  // [N, D]
  const T* dsum = dsum_of_tokens.const_data_ptr<T>();
  Gradients out;
  out.dtaps = backward_taps<kSilu>(in, dy.const_data_ptr<T>(), dsum_of_tokens.mutable_data_ptr<T>());
  out.dx = at::empty_like(in.x);
  const at::Tensor reversed = in.taps.flip(0).contiguous();  // [W, D] the tap of the same token first
  const T* taps = reversed.const_data_ptr<T>();
  const std::vector<T> zeros(static_cast<size_t>(width));
  T* dx = out.dx.mutable_data_ptr<T>();
  at::parallel_for(0, in.x.size(0), kTokensPerTask, [&](int64_t first, int64_t last) {
    std::vector<const T*> rows(static_cast<size_t>(num_taps));
    run_vectorized([&]() __attribute__((always_inline)) {
      for_each_token(
          offsets, first, last, [&](int64_t, int64_t, int64_t end, int64_t t) __attribute__((always_inline)) {
            for (int64_t ahead = 0; ahead < num_taps; ++ahead)
              rows[static_cast<size_t>(ahead)] = t + ahead < end ? dsum + (t + ahead) * width : zeros.data();
            filter_row<false>(num_taps, width, taps, rows.data(), dx + t * width);  // (eq. 4)
          });
    });
  });
  T* dhistory = nullptr;
  if (in.history.defined()) {
    out.dhistory = at::zeros_like(in.history);
    dhistory = out.dhistory.mutable_data_ptr<T>();
    add_history_gradient(in, dsum, dhistory);
  }
  if (dfinal.defined()) add_final_state_gradient(in, dfinal.const_data_ptr<T>(), dx, dhistory);  // (eq. 6)
  return out;
}

}  // namespace

Outputs forward_cpu(const Inputs& in) {
  if (in.x.scalar_type() == at::kDouble)
    return in.silu ? forward_rows<true, double>(in) : forward_rows<false, double>(in);
  return in.silu ? forward_rows<true, float>(in) : forward_rows<false, float>(in);
}

Gradients backward_cpu(const Inputs& in, const at::Tensor& dy, const at::Tensor& dfinal) {
  if (in.x.scalar_type() == at::kDouble)
    return in.silu ? backward_rows<true, double>(in, dy, dfinal)
                   : backward_rows<false, double>(in, dy, dfinal);
  return in.silu ? backward_rows<true, float>(in, dy, dfinal) : backward_rows<false, float>(in, dy, dfinal);
}

}  // namespace osdn::ops::short_conv_detail
