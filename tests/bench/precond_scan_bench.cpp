// The preconditioner scan at the quickstart's shape on the CPU and at the 340M model's on a GPU.
#include <fmt/format.h>

#include <vector>

#include "apps/bench/case.h"
#include "ops/precond_scan.h"
#include "tensor/torch.h"

namespace osdn::bench {
namespace {

std::vector<Case> precond_scan_cases(at::Device device) {
  const bool on_device = device.is_cuda();
  const int64_t B = on_device ? 16 : 8;
  const int64_t T = on_device ? 2048 : 256;
  const int64_t H = on_device ? 8 : 3;
  const int64_t K = on_device ? 128 : 64;
  const at::ScalarType dtype = on_device ? at::kBFloat16 : at::kFloat;
  std::vector<Case> cases;
  struct Mode {
    const char* name;
    bool retention, statistics;
  };
  for (const auto& [name, retention, statistics] :
       {Mode{"", false, false}, Mode{" retention", true, false}, Mode{" statistics", false, true}}) {
    ops::PrecondScanArgs args;
    args.k = random({B * T, H, K}, dtype, device, 1).set_requires_grad(true);
    args.beta = random({B * T, H}, at::kFloat, device, 2).sigmoid().set_requires_grad(true);
    if (retention) args.retention = at::full({B * T, H}, 0.999, args.beta.options()).set_requires_grad(true);
    args.initial_scale.value =
        at::ones({H, K}, args.beta.options().requires_grad(false)).set_requires_grad(true);
    args.sequences = ops::Sequences::equal(B, T, device);
    args.collect_statistics = statistics;
    const double elements = static_cast<double>(B * T * H * K);
    const double element = static_cast<double>(at::elementSize(dtype));
    Case forward{.shape = fmt::format("B{} T{} H{} K{}{}", B, T, H, K, name),
                 .pass = "forward",
                 .dtype = dtype,
                 .device = device,
                 .bytes = 2 * elements * element,
                 .flop = 8 * elements,
                 .error =
                     [args, T] {
                       // One sequence: the float64 token loop is slow.
                       ops::PrecondScanArgs one = args;
                       const at::NoGradGuard no_grad;
                       one.k = args.k.narrow(0, 0, T);
                       one.beta = args.beta.narrow(0, 0, T);
                       if (args.retention.defined()) one.retention = args.retention.narrow(0, 0, T);
                       one.sequences = ops::Sequences::equal(1, T, args.k.device());
                       const at::Tensor found = ops::precond_scan(one).write_key;
                       one.k = one.k.to(at::kDouble);
                       one.beta = one.beta.to(at::kDouble);
                       if (one.retention.defined()) one.retention = one.retention.to(at::kDouble);
                       return relative_error(found, ops::precond_scan_ref(one).write_key);
                     },
                 .tolerance = dtype == at::kFloat ? 1e-5 : 1e-2,
                 .run =
                     [args] {
                       const at::NoGradGuard no_grad;
                       ops::precond_scan(args);
                     }};
    Case both = forward;
    both.pass = "forward+backward";
    both.bytes = 6 * elements * element;
    both.flop = 30 * elements;
    both.run = [args, upstream = at::ones({B * T, H, K}, args.k.options().requires_grad(false))] {
      std::vector<at::Tensor> leaves = {args.k, args.beta, args.initial_scale.value};
      if (args.retention.defined()) leaves.push_back(args.retention);
      torch::autograd::grad({ops::precond_scan(args).write_key}, leaves, {upstream});
    };
    cases.push_back(forward);
    cases.push_back(both);
  }
  return cases;
}

const Registrar kPrecondScanBench("precond_scan", precond_scan_cases);

}  // namespace
}  // namespace osdn::bench
