#include "ops/embedding.h"

#include "tests/bench/differentiable.h"

namespace osdn::bench {
namespace {

std::vector<Case> embedding_cases(at::Device device) {
  const at::ScalarType dtype = training_dtype(device);
  const int64_t rows = device.is_cuda() ? 8192 : 4096;
  const int64_t width = device.is_cuda() ? 1024 : 256;
  const int64_t vocabulary = device.is_cuda() ? 32000 : 2048;
  // Squares of uniform numbers: low ids are common, as in text.
  const at::Tensor uniform = random({rows}, at::kDouble, at::kCPU, 3).abs().clamp_max(4).div(4.001).square();
  const at::Tensor ids = (uniform * static_cast<double>(vocabulary)).to(at::kLong).to(device);
  const double elements = static_cast<double>(rows * width);
  const double size = dtype == at::kFloat ? 4 : 2;
  DifferentiableOp op;
  op.shape = "N" + std::to_string(rows) + " D" + std::to_string(width) + " V" + std::to_string(vocabulary);
  op.inputs = {random({vocabulary, width}, dtype, device, 1)};
  op.weights = {0};
  op.op = [ids](const Tensors& i, const Tensors& s) { return ops::embedding(ids, {i[0], s[0]}); };
  op.reference = [ids](const Tensors& i) { return ops::embedding_ref(ids, i[0]); };
  op.forward_bytes = 2 * size * elements;
  op.backward_bytes = (size + 8) * elements;  // reads dy, reads and writes fp32 rows of the sink
  op.tolerance = dtype == at::kFloat ? 1e-5 : 4e-3;
  return forward_and_backward(op);
}

const Registrar kEmbedding("embedding", embedding_cases);

}  // namespace
}  // namespace osdn::bench
