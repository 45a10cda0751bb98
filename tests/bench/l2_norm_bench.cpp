// L2 normalisation of keys at the quickstart's shape on the CPU and at the 340M model's on a GPU.
#include <fmt/format.h>

#include <vector>

#include "apps/bench/case.h"
#include "ops/l2_norm.h"
#include "tensor/torch.h"

namespace osdn::bench {
namespace {

std::vector<Case> l2_norm_cases(at::Device device) {
  const bool on_device = device.is_cuda();
  const int64_t N = on_device ? 32768 : 2048;
  const int64_t H = on_device ? 8 : 3;
  const int64_t K = on_device ? 128 : 64;
  const at::ScalarType dtype = on_device ? at::kBFloat16 : at::kFloat;
  const at::Tensor x = random({N, H, K}, dtype, device, 1).set_requires_grad(true);
  const at::Tensor upstream = random({N, H, K}, dtype, device, 2);
  const double elements = static_cast<double>(x.numel());
  const double element = static_cast<double>(at::elementSize(dtype));
  Case forward{
      .shape = fmt::format("N{} H{} K{}", N, H, K),
      .pass = "forward",
      .dtype = dtype,
      .device = device,
      .bytes = 2 * elements * element,
      .flop = 3 * elements,
      .error = [x] { return relative_error(ops::l2_norm(x), ops::l2_norm_ref(x.detach().to(at::kDouble))); },
      .tolerance = dtype == at::kFloat ? 1e-6 : 1e-2,
      .run =
          [x] {
            const at::NoGradGuard no_grad;
            ops::l2_norm(x);
          }};
  Case both = forward;
  both.pass = "forward+backward";
  both.bytes = 5 * elements * element;
  both.flop = 8 * elements;
  both.run = [x, upstream] { torch::autograd::grad({ops::l2_norm(x)}, {x}, {upstream}); };
  return {forward, both};
}

const Registrar kL2NormBench("l2_norm", l2_norm_cases);

}  // namespace
}  // namespace osdn::bench
