// The decay gate by the CUDA kernels (kernels/decay_gate.h): their arguments.
#include "kernels/decay_gate.h"

#include "ops/detail/decay_gate_paths.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::ops::decay_gate_detail {
namespace decay_gate_kernel_detail {

constexpr uintptr_t kAlignment = 16;  // bytes
constexpr int64_t kChannels = 4;      // of a thread

at::Tensor aligned(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  return reinterpret_cast<uintptr_t>(whole.data_ptr()) % kAlignment == 0 ? whole : whole.clone();
}

}  // namespace decay_gate_kernel_detail

bool on_kernel_path(const at::Tensor& a) {
  const bool typed = a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kFloat;
  return a.is_cuda() && typed && a.dim() == 3 && a.size(2) % decay_gate_kernel_detail::kChannels == 0 &&
         compute_capability() >= 80;
}

at::Tensor forward_kernel(const Projection& in) {
  namespace detail = decay_gate_kernel_detail;
  const at::Tensor a = detail::aligned(in.a);
  const at::Tensor bias = detail::aligned(in.bias);
  at::Tensor g = at::empty(a.sizes(), a.options().dtype(at::kFloat));
  launch(kernels::DecayGateForwardArgs{.a = a.data_ptr(),
                                       .rate = in.rate.const_data_ptr<float>(),
                                       .bias = bias.const_data_ptr<float>(),
                                       .g = g.mutable_data_ptr<float>(),
                                       .num_tokens = a.size(0),
                                       .num_channels = a.size(2),
                                       .width = a.size(1) * a.size(2),
                                       .lower_bound = static_cast<float>(in.lower_bound.value_or(0)),
                                       .bf16 = a.scalar_type() == at::kBFloat16},
         current_stream());
  return g;
}

KernelGradients backward_kernel(const Projection& in, const at::Tensor& dg) {
  namespace detail = decay_gate_kernel_detail;
  const at::Tensor a = detail::aligned(in.a);
  const at::Tensor bias = detail::aligned(in.bias);
  const at::Tensor upstream = detail::aligned(dg);
  const at::TensorOptions wide = upstream.options();
  KernelGradients out{.da = at::empty_like(a),
                      .dbias = at::empty({a.size(1) * a.size(2)}, wide),
                      .drate = at::empty({a.size(1), a.size(2)}, wide)};
  const kernels::DecayGateBackwardArgs args{.a = a.data_ptr(),
                                            .rate = in.rate.const_data_ptr<float>(),
                                            .bias = bias.const_data_ptr<float>(),
                                            .d_g = upstream.const_data_ptr<float>(),
                                            .d_a = out.da.data_ptr(),
                                            .d_bias = out.dbias.mutable_data_ptr<float>(),
                                            .d_rate = out.drate.mutable_data_ptr<float>(),
                                            .num_tokens = a.size(0),
                                            .num_channels = a.size(2),
                                            .width = a.size(1) * a.size(2),
                                            .lower_bound = static_cast<float>(in.lower_bound.value_or(0)),
                                            .bf16 = a.scalar_type() == at::kBFloat16};
  const at::Tensor workspace =
      at::empty({static_cast<int64_t>(kernels::workspace_bytes(args))}, a.options().dtype(at::kByte));
  launch(args, workspace.data_ptr(), current_stream());
  return out;
}

}  // namespace osdn::ops::decay_gate_detail
