#include "tensor/check.h"

#include "base/error.h"
#include "tensor/torch.h"

namespace osdn {
namespace {

template <typename Range>
std::string list(const Range& extents) {
  std::string text = "[";
  for (const auto extent : extents) {
    if (text.size() > 1) text += ", ";
    text += extent < 0 ? std::string("*") : std::to_string(extent);
  }
  return text + "]";
}

}  // namespace

void check_shape(std::string_view op, std::string_view argument, const at::Tensor& tensor,
                 std::initializer_list<int64_t> shape) {
  if (!tensor.defined())
    throw UserError("{}: {}: expected a tensor of shape {}, got none", op, argument, list(shape));
  bool matches = tensor.dim() == static_cast<int64_t>(shape.size());
  int64_t axis = 0;
  for (const int64_t extent : shape) {
    if (!matches) break;
    matches = extent < 0 || tensor.size(axis) == extent;
    ++axis;
  }
  if (!matches)
    throw UserError("{}: {}: expected shape {}, got {} (packed tokens first, docs/ops/{}.md)", op, argument,
                    list(shape), list(tensor.sizes()), op);
}

void check_dtype(std::string_view op, std::string_view argument, const at::Tensor& tensor,
                 std::initializer_list<at::ScalarType> allowed) {
  std::string names;
  for (const at::ScalarType type : allowed) {
    if (tensor.scalar_type() == type) return;
    names += (names.empty() ? "" : ", ") + std::string(c10::toString(type));
  }
  throw UserError("{}: {}: expected dtype {}, got {}", op, argument, names,
                  c10::toString(tensor.scalar_type()));
}

void check_same_device(std::string_view op, std::string_view argument, const at::Tensor& tensor,
                       const at::Tensor& reference) {
  if (tensor.device() != reference.device())
    throw UserError("{}: {}: expected device {}, got {}", op, argument, reference.device().str(),
                    tensor.device().str());
}

}  // namespace osdn
