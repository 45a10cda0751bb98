#include <vector>

#include "ops/short_conv.h"
#include "tensor/torch.h"

namespace osdn::ops {

ShortConvOutput short_conv_ref(const ShortConvArgs& args) {
  const at::ScalarType type = args.x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor taps = args.weight.value.squeeze(1).to(type);  // [D, W]
  const int64_t num_taps = taps.size(1);
  const std::vector<int64_t>& offsets = args.sequences->host_offsets();
  std::vector<at::Tensor> y;       // each [1, D]
  std::vector<at::Tensor> states;  // each [D, W]
  y.push_back(at::zeros({0, args.x.size(1)}, args.x.options()));
  for (int64_t s = 0; s < args.sequences->num_sequences(); ++s) {
    at::Tensor window = args.initial_state.defined()
                            ? args.initial_state[s]
                            : at::zeros({args.x.size(1), num_taps}, args.x.options());
    for (int64_t t = offsets[static_cast<size_t>(s)]; t < offsets[static_cast<size_t>(s) + 1]; ++t) {
      window = at::cat({window.narrow(1, 1, num_taps - 1), args.x[t].unsqueeze(1)}, 1);
      const at::Tensor sum = (window.to(type) * taps).sum(1);
      y.push_back((args.silu ? at::silu(sum) : sum).to(args.x.scalar_type()).unsqueeze(0));
    }
    states.push_back(window);
  }
  const at::Tensor final_state =
      states.empty() ? at::zeros({0, args.x.size(1), num_taps}, args.x.options()) : at::stack(states);
  return {.y = at::cat(y), .final_state = final_state};
}

}  // namespace osdn::ops
