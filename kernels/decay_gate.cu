// The log decay of gated backbones (docs/ops/decay_gate.md, eq. 1-7): a thread has 16 bytes of a row's
// columns and walks down the rows of its block, so that sums over rows stay in registers. Memory-bound: 4
// bytes a number forward and 6 backward where a and g are bf16, 6 and 8 where g is fp32. The split into
// blocks depends on the number of rows alone, and with it the order of the sums: a block's rows, then the
// blocks. Any architecture from sm_80.
#include "kernels/decay_gate.h"

#include <cuda_bf16.h>

#include <type_traits>

#include "kernels/common/launch.h"
#include "kernels/common/mma.cuh"
#include "kernels/common/warp.cuh"
#include "kernels/detail/column_sum.cuh"

namespace osdn::kernels {
namespace decay_gate_detail {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr int kThreads = 128;
constexpr int kRowsAtOnce = 4;  // loaded before they are used
constexpr int kForwardRows = 16;
// The backward pass: blocks that an H200 holds at once, as more leave more partial sums; of one
// multiprocessor.
constexpr int kBackwardBlocks = 512;
constexpr int kBackwardBlocksHeld = 4;

constexpr int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }

/// Of a block: whole groups of rows that are loaded together.
constexpr int64_t backward_rows(int64_t num_rows) {
  return divide_up(divide_up(num_rows, kBackwardBlocks), kRowsAtOnce) * kRowsAtOnce;
}

/// log(1 + e) / e for 0 <= e <= 1, which equals it at 8 Chebyshev nodes and in 0: relative error 2e-7.
__device__ inline float log1p_quotient(float e) {
  float sum = 7.184105459600687e-3f;
  sum = fmaf(sum, e, -3.7107571959495544e-2f);
  sum = fmaf(sum, e, 9.01905819773674e-2f);
  sum = fmaf(sum, e, -0.14636260271072388f);
  sum = fmaf(sum, e, 0.195396289229393f);
  sum = fmaf(sum, e, -0.2494623064994812f);
  sum = fmaf(sum, e, 0.333308607339859f);
  sum = fmaf(sum, e, -0.4999998211860657f);
  return fmaf(sum, e, 1.0f);
}

/// What a gate is made of, from y and the rate r of its head.
template <bool Bounded>
struct Gate {
  float value;       // g
  float slope;       // dg / dy
  float rate_slope;  // dg / dA

  __device__ Gate(float y, float rate, float lower_bound) {
    const float x = Bounded ? rate * y : y;
    // One exponential, at most 1, for all of them: neither tail loses its digits.
    const float e = exp2_approx(-kLog2E * fabsf(x));
    const float low = e * reciprocal(1.0f + e);  // sigmoid(-|x|)
    const float s = x < 0.0f ? low : 1.0f - low;
    if constexpr (Bounded) {
      value = lower_bound * s;  // (eq. 2)
      const float by_x = value * (x < 0.0f ? 1.0f - low : low);
      slope = by_x * rate;    // (eq. 5)
      rate_slope = by_x * x;  // (eq. 6)
    } else {
      value = -rate * fmaf(e, log1p_quotient(e), fmaxf(x, 0.0f));  // (eq. 1)
      slope = -rate * s;                                           // (eq. 3)
      rate_slope = value;                                          // (eq. 4)
    }
  }
};

/// This thread's V columns, what they share over the rows, and the rows of its block.
template <int V>
struct Walk {
  int64_t column;
  int64_t width;
  int64_t row;  // the first of those left
  int left;     // rows
  float rate;   // of the columns' head
  float bias[V];

  __device__ Walk(const DecayGateInputs& in, int64_t rows)
      : column((static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * V),
        width(in.num_heads * in.num_channels),
        row(blockIdx.x * rows),
        left(static_cast<int>(min(rows, in.num_rows - row))),
        rate(0.0f),
        bias{} {
    if (column >= width) {
      left = 0;
      return;
    }
    rate = expf(in.log_rate[column / in.num_channels]);
#pragma unroll
    for (int i = 0; i < V; ++i) bias[i] = in.bias[column + i];
  }

  __device__ void next() {
    row += kRowsAtOnce;
    left -= kRowsAtOnce;
  }

  /// The next rows of an array; zeros after the last.
  template <typename Number>
  __device__ void load(const void* array, int64_t stride, Row<Number, V> (&out)[kRowsAtOnce]) const {
    const Number* source = static_cast<const Number*>(array) + row * stride + column;
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) {
      out[j] = {};
      if (j < left) out[j] = load_row<Number, V>(source + j * stride);
    }
  }

  template <typename Number>
  __device__ void store(void* array, int j, const float (&values)[V]) const {
    Number* target = static_cast<Number*>(array) + row * width + column;
    store_row<Number, V>(target + j * width, values, j < left);
  }
};

/// T: number of a and d_a, of which a thread has V columns; G: of g and d_g.
template <typename T, typename G, int V, bool Bounded>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const __grid_constant__ DecayGateForwardArgs args) {
  const DecayGateInputs& in = args.in;
  for (Walk<V> walk(in, kForwardRows); walk.left > 0; walk.next()) {
    Row<T, V> rows[kRowsAtOnce];
    walk.load(in.a, in.row_stride, rows);
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) {
      float values[V];
      rows[j].unpack(values);
#pragma unroll
      for (int i = 0; i < V; ++i)
        values[i] = Gate<Bounded>(values[i] + walk.bias[i], walk.rate, in.lower_bound).value;
      walk.template store<G>(args.g, j, values);
    }
  }
}

template <typename T, typename G, int V, bool Bounded>
__global__ void __launch_bounds__(kThreads, kBackwardBlocksHeld)
    backward_kernel(const __grid_constant__ DecayGateBackwardArgs args) {
  const DecayGateInputs& in = args.in;
  float d_bias[V] = {};
  float d_rate[V] = {};
  Walk<V> walk(in, backward_rows(in.num_rows));
  if (walk.left <= 0) return;
  for (; walk.left > 0; walk.next()) {
    Row<T, V> rows[kRowsAtOnce];
    Row<G, V> upstream[kRowsAtOnce];
    walk.load(in.a, in.row_stride, rows);
    walk.load(args.d_g, walk.width, upstream);
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) {
      float values[V];
      float d_g[V];
      rows[j].unpack(values);
      upstream[j].unpack(d_g);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const Gate<Bounded> gate(values[i] + walk.bias[i], walk.rate, in.lower_bound);
        values[i] = d_g[i] * gate.slope;
        d_bias[i] += values[i];  // (eq. 7)
        d_rate[i] += d_g[i] * gate.rate_slope;
      }
      walk.template store<T>(args.d_a, j, values);
    }
  }
  float* sums = args.partials + blockIdx.x * 2 * walk.width + walk.column;
  store_row<float, V>(sums, d_bias, true);
  store_row<float, V>(sums + walk.width, d_rate, true);
}

/// Columns of a thread: 16 bytes of a, or one where heads, rows or addresses are not of that size.
template <typename... Pointers>
int columns_of_thread(const DecayGateInputs& in, const Pointers*... others) {
  const int whole = in.bf16 ? 8 : 4;
  const auto fits = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  return in.num_channels % whole == 0 && in.row_stride % whole == 0 && fits(in.a) && (fits(others) && ...)
             ? whole
             : 1;
}

/// Calls call(T(), G(), V, Bounded) for what the inputs need, the latter two as integral constants.
template <typename Call>
void specialize(const DecayGateInputs& in, int columns, const Call& call) {
  const auto by_bound = [&](auto number, auto gate, auto count) {
    in.bounded ? call(number, gate, count, std::true_type()) : call(number, gate, count, std::false_type());
  };
  const auto by_columns = [&](auto number, auto gate, auto whole) {
    columns > 1 ? by_bound(number, gate, whole) : by_bound(number, gate, std::integral_constant<int, 1>());
  };
  const std::integral_constant<int, 8> eight;
  if (!in.bf16)
    by_columns(float(), float(), std::integral_constant<int, 4>());
  else if (in.bf16_gates)
    by_columns(__nv_bfloat16(), __nv_bfloat16(), eight);
  else
    by_columns(__nv_bfloat16(), float(), eight);
}

template <typename Args>
void queue(void (*kernel)(Args), const Args& args, int64_t rows, int columns, CUstream_st* stream) {
  const int64_t width = args.in.num_heads * args.in.num_channels;
  const dim3 grid(static_cast<unsigned>(divide_up(args.in.num_rows, rows)),
                  static_cast<unsigned>(divide_up(width / columns, kThreads)));
  launch_kernel(kernel, grid, kThreads, 0, args, stream);
}

}  // namespace
}  // namespace decay_gate_detail

int64_t decay_gate_num_partials(int64_t num_rows) {
  namespace detail = decay_gate_detail;
  return num_rows == 0 ? 0 : detail::divide_up(num_rows, detail::backward_rows(num_rows));
}

void launch(const DecayGateForwardArgs& args, CUstream_st* stream) {
  namespace detail = decay_gate_detail;
  if (args.in.num_rows == 0 || args.in.num_heads * args.in.num_channels == 0) return;
  detail::specialize(
      args.in, detail::columns_of_thread(args.in, args.g),
      [&](auto number, auto gate, auto columns, auto bounded) {
        constexpr int V = decltype(columns)::value;
        detail::queue(detail::forward_kernel<decltype(number), decltype(gate), V, decltype(bounded)::value>,
                      args, detail::kForwardRows, V, stream);
      });
}

void launch(const DecayGateBackwardArgs& args, CUstream_st* stream) {
  namespace detail = decay_gate_detail;
  const int64_t width = args.in.num_heads * args.in.num_channels;
  if (width == 0) return;
  if (args.in.num_rows > 0)
    detail::specialize(
        args.in, detail::columns_of_thread(args.in, args.d_g, args.d_a, args.partials),
        [&](auto number, auto gate, auto columns, auto bounded) {
          constexpr int V = decltype(columns)::value;
          detail::queue(
              detail::backward_kernel<decltype(number), decltype(gate), V, decltype(bounded)::value>, args,
              detail::backward_rows(args.in.num_rows), V, stream);
        });
  launch_column_sum(args.partials, decay_gate_num_partials(args.in.num_rows), 2 * width, args.d_columns,
                    false, stream);
}

}  // namespace osdn::kernels
