#include <vector>

#include "ops/short_conv.h"
#include "tensor/torch.h"

namespace osdn::ops {

ShortConvOutput short_conv_ref(const ShortConvArgs& args) {
  const at::ScalarType type = args.x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t num_channels = args.x.size(1) - args.rest;        // D
  const at::Tensor x = args.x.narrow(1, 0, num_channels);         // [N, D]
  const at::Tensor taps = args.weight.value.squeeze(1).to(type);  // [D, W]
  const int64_t num_taps = taps.size(1);
  const std::vector<int64_t>& offsets = args.sequences->host_offsets();
  std::vector<at::Tensor> y;       // each [1, D]
  std::vector<at::Tensor> states;  // each [D, W]
  y.push_back(at::zeros({0, num_channels}, x.options()));
  for (int64_t s = 0; s < args.sequences->num_sequences(); ++s) {
    at::Tensor window = args.initial_state.defined() ? args.initial_state[s]
                                                     : at::zeros({num_channels, num_taps}, x.options());
    for (int64_t t = offsets[static_cast<size_t>(s)]; t < offsets[static_cast<size_t>(s) + 1]; ++t) {
      window = at::cat({window.narrow(1, 1, num_taps - 1), x[t].unsqueeze(1)}, 1);
      const at::Tensor sum = (window.to(type) * taps).sum(1);
      y.push_back((args.silu ? at::silu(sum) : sum).to(x.scalar_type()).unsqueeze(0));
    }
    states.push_back(window);
  }
  const at::Tensor final_state =
      states.empty() ? at::zeros({0, num_channels, num_taps}, x.options()) : at::stack(states);
  ShortConvOutput out{.y = at::cat(y), .parts = {}, .rest = {}, .final_state = final_state};
  if (args.rest > 0) out.rest = args.x.narrow(1, num_channels, args.rest);
  if (args.parts.empty()) return out;
  out.parts = out.y.split_with_sizes(args.parts, 1);
  out.y = at::Tensor();
  return out;
}

}  // namespace osdn::ops
