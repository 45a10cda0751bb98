#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "tensor/torch.h"

namespace osdn::checkpoint {
namespace safetensors_write_detail {

static_assert(std::endian::native == std::endian::little,
              "safetensors data is little-endian and written from memory");

// Blocks small enough that the digest reads what the write call has just brought into the cache.
constexpr size_t kBlockBytes = size_t{4} << 20;

const char* dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "F64";
    case at::kFloat:
      return "F32";
    case at::kHalf:
      return "F16";
    case at::kBFloat16:
      return "BF16";
    case at::kLong:
      return "I64";
    case at::kInt:
      return "I32";
    case at::kShort:
      return "I16";
    case at::kChar:
      return "I8";
    case at::kByte:
      return "U8";
    case at::kBool:
      return "BOOL";
    default:
      return nullptr;
  }
}

struct Layout {
  std::string prefix;         // length field and padded header
  std::vector<size_t> order;  // indices of the tensors in the order of their data
  uint64_t data_bytes = 0;
};

Layout lay_out(const TensorList& tensors, const std::map<std::string, std::string>& metadata) {
  Layout layout;
  std::set<std::string> seen = {"__metadata__"};
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    OSDN_ASSERT(seen.insert(name).second, "{}: name used twice", name);
    OSDN_ASSERT(tensor.defined() && tensor.device().is_cpu() && tensor.is_contiguous(),
                "{}: safetensors are written from contiguous CPU tensors", name);
    OSDN_ASSERT(dtype_name(tensor.scalar_type()) != nullptr, "{}: dtype {} has no safetensors name", name,
                c10::toString(tensor.scalar_type()));
    layout.order.push_back(i);
  }
  std::stable_sort(layout.order.begin(), layout.order.end(), [&](size_t a, size_t b) {
    return tensors[a].second.element_size() > tensors[b].second.element_size();
  });
  // Text is assembled by hand: an ordered JSON object searches linearly and would make long headers
  // quadratic.
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) header += Json(key).dump() + ":" + Json(value).dump() + ",";
    header.back() = '}';
    header += ",";
  }
  for (const size_t i : layout.order) {
    const auto& [name, tensor] = tensors[i];
    const uint64_t begin = layout.data_bytes;
    layout.data_bytes += tensor.nbytes();
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}},", Json(name).dump(),
                          dtype_name(tensor.scalar_type()), Json(tensor.sizes().vec()).dump(), begin,
                          layout.data_bytes);
  }
  if (header.back() == ',') header.pop_back();
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  layout.prefix.assign(reinterpret_cast<const char*>(&length), sizeof length);
  layout.prefix += header;
  return layout;
}

}  // namespace safetensors_write_detail

uint64_t safetensors_bytes(const TensorList& tensors, const std::map<std::string, std::string>& metadata) {
  const auto layout = safetensors_write_detail::lay_out(tensors, metadata);
  return layout.prefix.size() + layout.data_bytes;
}

Digest128 write_safetensors(const std::string& path, const TensorList& tensors,
                            const std::map<std::string, std::string>& metadata) {
  const auto layout = safetensors_write_detail::lay_out(tensors, metadata);
  File file = File::create(path);
  StreamingDigest digest;
  const auto put = [&](const char* data, size_t size_bytes) {
    for (size_t done = 0; done < size_bytes;) {
      const size_t block = std::min(safetensors_write_detail::kBlockBytes, size_bytes - done);
      file.write(data + done, block);
      digest.update(data + done, block);
      done += block;
    }
  };
  put(layout.prefix.data(), layout.prefix.size());
  for (const size_t i : layout.order) {
    const at::Tensor& tensor = tensors[i].second;
    put(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  file.sync();
  return digest.value();
}

}  // namespace osdn::checkpoint
