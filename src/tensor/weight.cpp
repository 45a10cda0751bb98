#include "tensor/weight.h"

#include "base/error.h"
#include "tensor/torch.h"

namespace osdn {
namespace {

at::Tensor join_adjacent(const std::vector<at::Tensor>& parts) {
  int64_t rows = 0;
  const char* end = static_cast<const char*>(parts.front().data_ptr());
  for (const at::Tensor& part : parts) {
    OSDN_ASSERT(part.data_ptr() == end && part.is_contiguous(), "the weights of a group are not adjacent");
    OSDN_ASSERT(part.sizes().slice(1) == parts.front().sizes().slice(1),
                "the weights of a group differ in shape");
    end += part.nbytes();
    rows += part.size(0);
  }
  std::vector<int64_t> shape = parts.front().sizes().vec();
  shape[0] = rows;
  // The first part keeps the memory alive; all parts share one allocation.
  return at::from_blob(
      parts.front().data_ptr(), shape, [keep = parts.front()](void*) {}, parts.front().options());
}

}  // namespace

Weight join(const std::vector<Weight>& weights) {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> sinks;
  for (const Weight& weight : weights) {
    values.push_back(weight.value);
    if (weight.sink.defined()) sinks.push_back(weight.sink);
  }
  OSDN_ASSERT(sinks.empty() || sinks.size() == values.size(),
              "some weights of a group have a sink and some have none");
  return {.value = join_adjacent(values), .sink = sinks.empty() ? at::Tensor() : join_adjacent(sinks)};
}

}  // namespace osdn
