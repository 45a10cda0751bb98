// The CUDA kernels of the decay gate, run on the CPU (tests/emulation/cuda_on_cpu.h), against float64
// (docs/ops/decay_gate.md eq. 1-7).
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/decay_gate.h"
#include "tests/emulation/buffer.h"
#include "tests/emulation/launch_checked.h"
#include "tests/support/catch.h"

namespace osdn::kernels::decay_gate_kernels_test {

using emulation_test::Buffer;
using emulation_test::launch_checked;

struct Shape {
  int64_t rows, heads, channels;
};

struct Exact {
  double g, slope, rate_slope;
};

/// Every digit of eq. 1-6 in both tails: no 1 - s of an s near 1, log1p for the softplus.
Exact exact_gate(double y, double rate, bool bounded, double bound) {
  const double x = bounded ? rate * y : y;
  const double s = 1 / (1 + std::exp(-x));
  if (!bounded) {
    const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
    return {-rate * softplus, -rate * s, -rate * softplus};
  }
  const double by_x = bound * s / (1 + std::exp(x));
  return {bound * s, by_x * rate, by_x * x};
}

/// The largest relative error, where the exact values are those of normal numbers.
class Worst {
 public:
  void add(double actual, double exact) {
    if (std::abs(exact) < 1e-36 && std::abs(actual) < 1e-36) return;
    const double error = std::abs(actual / exact - 1);
    if (!(error <= worst_)) worst_ = error;  // NaN stays
  }
  double value() const { return worst_; }

 private:
  double worst_ = 0;
};

/// One gate problem: inputs, and what the kernels make of them. T: of a; G: of the gates and their gradients.
template <typename T, typename G = float>
struct Problem {
  Shape shape;
  int64_t width, stride, partials;
  bool bounded;
  float bound = -5.0f;
  Buffer<T> memory;  // that a lies in
  int begin;         // of a
  T* a;              // for the test
  Buffer<T> d_a;
  Buffer<G> g, d_g;
  Buffer<float> log_rate, bias, sums, d_columns;

  Problem(const Shape& of, bool is_bounded, int64_t row_stride, int offset)
      : shape(of),
        width(of.heads * of.channels),
        stride(row_stride),
        partials(decay_gate_num_partials(of.rows)),
        bounded(is_bounded),
        memory(of.rows * row_stride + offset),
        begin(offset),
        a(memory.host() + offset),
        d_a(of.rows * width),
        g(of.rows * width),
        d_g(of.rows * width),
        log_rate(of.heads),
        bias(width),
        sums(partials * 2 * width),
        d_columns(2 * width) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (int64_t row = 0; row < of.rows; ++row)
      for (int64_t column = 0; column < width; ++column) {
        a[row * stride + column] = static_cast<T>(4 * normal(random));
        d_g[row * width + column] = static_cast<G>(normal(random));
      }
    for (int64_t head = 0; head < of.heads; ++head) log_rate[head] = normal(random);
    for (int64_t column = 0; column < width; ++column) bias[column] = normal(random) - 2;
  }

  void run() {
    const DecayGateInputs in{.a = memory.get() + begin,
                             .log_rate = log_rate.get(),
                             .bias = bias.get(),
                             .num_rows = shape.rows,
                             .num_heads = shape.heads,
                             .num_channels = shape.channels,
                             .row_stride = stride,
                             .bounded = bounded,
                             .lower_bound = bounded ? bound : 0.0f,
                             .bf16 = std::is_same_v<T, __nv_bfloat16>,
                             .bf16_gates = std::is_same_v<G, __nv_bfloat16>};
    launch_checked(DecayGateForwardArgs{.in = in, .g = g.get()});
    launch_checked(DecayGateBackwardArgs{
        .in = in, .d_g = d_g.get(), .d_a = d_a.get(), .partials = sums.get(), .d_columns = d_columns.get()});
    CHECK(d_a.guards_intact());
    CHECK(g.guards_intact());
    for (const Buffer<float>* x : {&sums, &d_columns}) CHECK(x->guards_intact());
  }

  Exact exact(int64_t row, int64_t column) {
    return exact_gate(static_cast<double>(static_cast<float>(a[row * stride + column])) + bias[column],
                      std::exp(double{log_rate[column / shape.channels]}), bounded, bound);
  }
};

/// Relative to the sum of the terms' magnitudes: what rounding them leaves.
bool near(double actual, double exact, double magnitude) {
  return std::abs(actual - exact) <= 2e-6 * magnitude;
}

template <typename T, typename G>
void check_kernels(const Shape& shape, bool bounded, int64_t row_stride, int offset) {
  CAPTURE(shape.rows, shape.heads, shape.channels, bounded, row_stride, offset, sizeof(T), sizeof(G));
  Problem<T, G> problem(shape, bounded, row_stride, offset);
  problem.run();
  Worst g, d_a;
  for (int64_t column = 0; column < problem.width; ++column) {
    double d_bias = 0, d_rate = 0, bias_terms = 0, rate_terms = 0;
    for (int64_t row = 0; row < shape.rows; ++row) {
      const int64_t at = row * problem.width + column;
      const Exact exact = problem.exact(row, column);
      const double upstream = static_cast<float>(problem.d_g[at]);
      g.add(static_cast<float>(problem.g[at]), exact.g);
      d_a.add(static_cast<float>(problem.d_a[at]), upstream * exact.slope);
      d_bias += upstream * exact.slope;
      d_rate += upstream * exact.rate_slope;
      bias_terms += std::abs(upstream * exact.slope);
      rate_terms += std::abs(upstream * exact.rate_slope);
    }
    CHECK(near(problem.d_columns[column], d_bias, bias_terms));
    CHECK(near(problem.d_columns[problem.width + column], d_rate, rate_terms));
  }
  // y = a + b and r y are rounded once each, to 6e-8 of sizes up to 20 and 100, which the exponential turns
  // into relative errors; bf16 rounds to 8 bits.
  CHECK(g.value() < (std::is_same_v<G, float> ? 2e-5 : 4e-3));
  CHECK(d_a.value() < (std::is_same_v<T, float> ? 2e-5 : 4e-3));
}

/// In the types that a and the gates have together.
void check_types(const Shape& shape, bool bounded, int64_t row_stride, int offset) {
  check_kernels<__nv_bfloat16, __nv_bfloat16>(shape, bounded, row_stride, offset);
  check_kernels<__nv_bfloat16, float>(shape, bounded, row_stride, offset);
  check_kernels<float, float>(shape, bounded, row_stride, offset);
}

TEST_CASE("the decay gate's kernels equal float64 in every number", "[decay_gate_kernels]") {
  const bool bounded = GENERATE(false, true);
  // Rows beyond one block and beyond a whole group, columns beyond one block; heads of no multiple of 16
  // bytes.
  const Shape shape = GENERATE(Shape{1, 1, 1}, Shape{37, 3, 1}, Shape{35, 2, 5}, Shape{2, 5, 8},
                               Shape{33, 2, 128}, Shape{6, 9, 128}, Shape{2055, 1, 16});
  check_types(shape, bounded, shape.heads * shape.channels, 0);
}

TEST_CASE("the decay gate's kernels read rows of a wider matrix, at any address", "[decay_gate_kernels]") {
  const bool bounded = GENERATE(false, true);
  const Shape shape{21, 2, 32};
  const int offset = GENERATE(0, 1, 8);
  const int64_t stride = GENERATE(72, 75);
  check_types(shape, bounded, stride, offset);
}

template <typename T>
bool same_bits(const Buffer<T>& x, const Buffer<T>& y) {
  return x.size() == y.size() && std::memcmp(x.host(), y.host(), x.size() * sizeof(T)) == 0;
}

template <typename G>
void check_single_columns(bool bounded) {
  const Shape shape{70, 2, 16};
  Problem<__nv_bfloat16, G> whole(shape, bounded, 32, 0);
  Problem<__nv_bfloat16, G> single(shape, bounded, 33, 1);
  whole.run();
  single.run();
  CHECK(same_bits(whole.g, single.g));
  CHECK(same_bits(whole.d_a, single.d_a));
  CHECK(same_bits(whole.d_columns, single.d_columns));
}

TEST_CASE("the decay gate has the same bits in rows read 16 bytes and one number at a time",
          "[decay_gate_kernels]") {
  const bool bounded = GENERATE(false, true);
  check_single_columns<__nv_bfloat16>(bounded);
  check_single_columns<float>(bounded);
}

TEST_CASE("a decay in bf16 is the one in fp32 rounded once, and its gradients do not differ",
          "[decay_gate_kernels]") {
  const bool bounded = GENERATE(false, true);
  const Shape shape = GENERATE(Shape{37, 2, 16}, Shape{35, 2, 5});
  const int64_t width = shape.heads * shape.channels;
  Problem<__nv_bfloat16, __nv_bfloat16> narrow(shape, bounded, width, 0);
  Problem<__nv_bfloat16, float> wide(shape, bounded, width, 0);
  for (size_t i = 0; i < wide.d_g.size(); ++i) wide.d_g[i] = static_cast<float>(narrow.d_g[i]);
  narrow.run();
  wide.run();
  for (size_t i = 0; i < wide.g.size(); ++i)
    CHECK(static_cast<float>(narrow.g[i]) == static_cast<float>(static_cast<__nv_bfloat16>(wide.g[i])));
  CHECK(same_bits(narrow.d_a, wide.d_a));
  CHECK(same_bits(narrow.d_columns, wide.d_columns));
}

TEST_CASE("a decay is a finite number, at most 0 and within its bound, for arguments of any size",
          "[decay_gate_kernels]") {
  const bool bounded = GENERATE(false, true);
  const float rate = GENERATE(1e-3f, 1.0f, 16.0f);
  constexpr int64_t kRows = 201;
  Problem<float> problem({kRows, 1, 4}, bounded, 4, 0);
  problem.log_rate[0] = std::log(rate);
  for (int64_t i = 0; i < kRows * 4; ++i) {
    const double size = std::pow(10.0, -30 + 60.0 * static_cast<double>(i) / (kRows * 4));
    problem.a[i] = static_cast<float>(i % 2 == 0 ? size : -size);
    problem.d_g[i] = 1;
  }
  for (int64_t i = 0; i < 4; ++i) problem.bias[i] = 0;
  problem.run();
  Worst g;
  for (int64_t i = 0; i < kRows * 4; ++i) {
    CHECK(problem.g[i] <= 0);
    CHECK(std::isfinite(problem.g[i]));
    CHECK(std::isfinite(problem.d_a[i]));
    if (bounded) CHECK(problem.g[i] >= problem.bound);
    // Below -15 the roundings of the argument of the exponential show.
    if (problem.a[i] * std::max(rate, 1.0f) > -15) g.add(problem.g[i], problem.exact(i / 4, i % 4).g);
  }
  CHECK(g.value() < 2e-6);
  for (int64_t i = 0; i < 8; ++i) CHECK(std::isfinite(problem.d_columns[i]));
}

TEST_CASE("no rows give sums of 0, no columns nothing", "[decay_gate_kernels]") {
  Problem<float> empty({0, 2, 4}, false, 8, 0);
  empty.run();
  for (int64_t i = 0; i < 16; ++i) CHECK(empty.d_columns[i] == 0);
  Problem<float>({3, 0, 4}, false, 0, 0).run();
}

TEST_CASE("rows beyond 2^31 numbers are read where they are", "[decay_gate_kernels][emulated_device]") {
  constexpr int64_t kRows = 9;
  constexpr int64_t kStride = (int64_t{1} << 29) + 8;  // the last row begins past 2^32
  const size_t bytes = (kRows * kStride) * sizeof(float);
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* a = static_cast<float*>(memory);  // pages that are never touched take no memory
  Problem<float> near_rows({kRows, 1, 4}, false, 4, 0);
  for (int64_t i = 0; i < kRows * 4; ++i) a[i / 4 * kStride + i % 4] = near_rows.a[i];
  near_rows.run();
  Buffer<float> g(kRows * 4);
  launch_checked(DecayGateForwardArgs{.in = {.a = a,
                                             .log_rate = near_rows.log_rate.get(),
                                             .bias = near_rows.bias.get(),
                                             .num_rows = kRows,
                                             .num_heads = 1,
                                             .num_channels = 4,
                                             .row_stride = kStride},
                                      .g = g.get()});
  for (int64_t i = 0; i < kRows * 4; ++i) CHECK(g[i] == near_rows.g[i]);
  munmap(memory, bytes);
}

}  // namespace osdn::kernels::decay_gate_kernels_test
