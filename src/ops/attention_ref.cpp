#include <algorithm>
#include <cmath>

#include "ops/attention.h"
#include "tensor/torch.h"

namespace osdn::ops {

at::Tensor attention_ref(const AttentionArgs& args) {
  const int64_t H = args.q.size(1);
  const int64_t group = H / args.k.size(1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(args.q.size(2)));
  const auto& queries = args.queries->host_offsets();
  const auto& keys = args.keys->host_offsets();
  std::vector<at::Tensor> rows;
  for (size_t s = 0; s + 1 < queries.size(); ++s)
    for (int64_t t = queries[s]; t < queries[s + 1]; ++t) {
      const int64_t end = keys[s + 1] - (queries[s + 1] - t) + 1;  // one past the token's own key
      const int64_t begin = args.window_size > 0 ? std::max(keys[s], end - args.window_size) : keys[s];
      std::vector<at::Tensor> heads;
      for (int64_t h = 0; h < H; ++h) {
        const at::Tensor k = args.k.slice(0, begin, end).select(1, h / group);  // [L, D]
        const at::Tensor v = args.v.slice(0, begin, end).select(1, h / group);  // [L, D]
        const at::Tensor p = at::softmax(at::mv(k, args.q[t][h]) * scale, 0);   // [L] (eq. 1)
        heads.push_back(at::mv(v.t(), p));                                      // [D] (eq. 2)
      }
      rows.push_back(at::stack(heads));
    }
  return rows.empty() ? at::zeros_like(args.q) : at::stack(rows);
}

at::Tensor rotary_ref(const at::Tensor& x, const at::Tensor& positions, double theta) {
  const int64_t half = x.size(2) / 2;
  std::vector<at::Tensor> first;
  std::vector<at::Tensor> second;
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
    const at::Tensor angle = (positions.to(x.scalar_type()) * frequency).unsqueeze(1);  // [N, 1]
    const at::Tensor a = x.select(2, i);                                                // [N, H]
    const at::Tensor b = x.select(2, i + half);
    first.push_back(a * angle.cos() - b * angle.sin());
    second.push_back(b * angle.cos() + a * angle.sin());
  }
  first.insert(first.end(), second.begin(), second.end());
  return at::stack(first, 2);
}

}  // namespace osdn::ops
