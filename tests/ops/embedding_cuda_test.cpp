// The CUDA kernels of the embedding's gradient against the reference in float64 on the CPU.
#include "ops/embedding.h"
#include "tests/support/op_check.h"
#include "tests/support/poison.h"

namespace osdn::test::embedding_cuda_test {

const at::Device kDevice(at::kCUDA, 0);
// Rounding of float32 sums over the repetitions of one id.
constexpr double kFloatTolerance = 2e-6;

// The table's gradient against float64 sums in any order.
void check_gradient(const at::Tensor& ids, int64_t vocabulary, int64_t width, at::ScalarType type) {
  CAPTURE(ids.size(0), vocabulary, width, c10::toString(type));
  const PoisonedMemory poisoned;
  const at::Tensor weight = normal({vocabulary, width}, 1).to(kDevice, type);
  const at::Tensor dy = normal({ids.size(0), width}, 2).to(type);
  const at::Tensor sink = at::full({vocabulary, width}, 0.5, weight.options().dtype(at::kFloat));
  ops::embedding(ids.to(kDevice), {weight, sink}).backward(dy.to(kDevice));
  const at::Tensor expected =
      at::zeros({vocabulary, width}, at::kDouble).index_add(0, ids, dy.to(at::kDouble));
  check_close("sink", sink - 0.5, expected, kFloatTolerance);
}

TEST_CASE("the embedding's kernels equal float64 at every number of tokens and width",
          "[embedding_cuda][cuda]") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const int64_t width : {4, 64, 1024, 1300})
      for (const int64_t count : {1, 2, 31, 32, 33, 64, 65, 1000, 5000}) {
        at::manual_seed(3);
        check_gradient(at::randint(11, {count}, at::kLong), 11, width, type);
        check_gradient(at::randint(3000, {count}, at::kLong), 3000, width, type);
      }
}

TEST_CASE("the embedding's kernels add runs of equal tokens of any length, at any place",
          "[embedding_cuda][cuda]") {
  for (const int64_t run : {1, 31, 32, 33, 63, 64, 65, 96, 100, 3000}) {
    at::Tensor ids = at::arange(700, at::kLong).remainder(50) + 1;
    for (const int64_t repeated : {0, 7, 60})  // below, among and above the others
      check_gradient(at::cat({ids, at::full({run}, repeated, at::kLong)}), 64, 8, at::kFloat);
  }
  check_gradient(at::zeros({640}, at::kLong), 1, 8, at::kFloat);
}

TEST_CASE("the embedding's gradient has the same bits every time and from strided rows",
          "[embedding_cuda][cuda]") {
  at::manual_seed(4);
  const at::Tensor ids = at::randint(40, {3000}, at::kLong).to(kDevice);
  const at::Tensor weight = normal({40, 64}, 1).to(kDevice, at::kBFloat16);
  const at::Tensor wide = normal({3000, 200}, 2).to(kDevice, at::kBFloat16);
  for (const int64_t begin : {8, 5}) {  // readable as it lies, and not
    const at::Tensor dy = wide.narrow(1, begin, 64);
    at::Tensor first;
    for (const bool contiguous : {true, true, false}) {
      const at::Tensor sink = at::zeros({40, 64}, weight.options().dtype(at::kFloat));
      ops::embedding(ids, {weight, sink}).backward(contiguous ? dy.contiguous() : dy);
      if (!first.defined()) first = sink;
      CHECK(at::equal(first, sink));
    }
  }
}

}  // namespace osdn::test::embedding_cuda_test
