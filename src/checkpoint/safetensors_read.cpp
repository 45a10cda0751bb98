#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/detail/strict_json.h"
#include "checkpoint/safetensors.h"
#include "tensor/torch.h"

namespace osdn::checkpoint {
namespace safetensors_read_detail {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kReadBlockBytes = size_t{4} << 20;
constexpr int kMaxHeaderDepth = 4;
constexpr size_t kMaxDimensions = 64;

struct Entry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the end of the header
  uint64_t end = 0;
};

std::optional<at::ScalarType> dtype_from_name(const std::string& name) {
  static const std::map<std::string, at::ScalarType> kTypes = {
      {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf},  {"BF16", at::kBFloat16},
      {"I64", at::kLong},   {"I32", at::kInt},   {"I16", at::kShort}, {"I8", at::kChar},
      {"U8", at::kByte},    {"BOOL", at::kBool}};
  const auto found = kTypes.find(name);
  return found == kTypes.end() ? std::nullopt : std::optional(found->second);
}

/// A list of non-negative integers; anything else is refused.
std::vector<uint64_t> unsigned_list(const std::string& where, const StrictJson& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array())
    throw DataError("{}: expected a list \"{}\" in the header", where, key);
  std::vector<uint64_t> values;
  for (const StrictJson& value : *found) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX})
      throw DataError("{}: {} holds {}, expected whole numbers from 0 to 2^63-1", where, key, value.dump());
    values.push_back(value.get<uint64_t>());
  }
  return values;
}

Entry parse_entry(const std::string& path, const std::string& name, const StrictJson& object) {
  const std::string where = fmt::format("{}: tensor {}", path, name);
  if (!object.is_object())
    throw DataError("{}: expected an object in the header, got {}", where, object.type_name());
  Entry entry;
  entry.name = name;
  const auto dtype = object.find("dtype");
  if (dtype == object.end() || !dtype->is_string()) throw DataError("{}: expected a string \"dtype\"", where);
  const auto type = dtype_from_name(dtype->get<std::string>());
  if (!type)
    throw DataError("{}: dtype {} is not supported (F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL are)", where,
                    dtype->get<std::string>());
  entry.dtype = *type;
  const std::vector<uint64_t> shape = unsigned_list(where, object, "shape");
  if (shape.size() > kMaxDimensions)
    throw DataError("{}: {} dimensions, expected at most {}", where, shape.size(), kMaxDimensions);
  uint64_t bytes = c10::elementSize(*type);
  int64_t span = static_cast<int64_t>(bytes);  // as if empty dimensions were 1: strides must not overflow
  for (const uint64_t extent : shape) {
    bytes *= extent;  // cannot wrap where the span does not
    if (__builtin_mul_overflow(span, std::max<int64_t>(static_cast<int64_t>(extent), 1), &span))
      throw DataError("{}: shape is larger than 2^63 bytes", where);
    entry.shape.push_back(static_cast<int64_t>(extent));
  }
  const std::vector<uint64_t> offsets = unsigned_list(where, object, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    throw DataError("{}: data_offsets must be [begin, end] with begin <= end", where);
  entry.begin = offsets[0];
  entry.end = offsets[1];
  if (entry.end - entry.begin != bytes)
    throw DataError("{}: shape needs {} bytes, data_offsets span {}", where, bytes, entry.end - entry.begin);
  return entry;
}

std::map<std::string, std::string> parse_metadata(const std::string& path, const StrictJson& object) {
  std::map<std::string, std::string> metadata;
  if (!object.is_object()) throw DataError("{}: __metadata__ must be an object of strings", path);
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string())
      throw DataError("{}: __metadata__ {}: expected a string, got {}", path, key, value.type_name());
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

/// Entries in data order; they must fill the data section without gap or overlap.
std::vector<Entry> parse_entries(const std::string& path, const StrictJson& header, uint64_t data_bytes) {
  std::vector<Entry> entries;
  for (const auto& [name, object] : header.items())
    if (name != "__metadata__") entries.push_back(parse_entry(path, name, object));
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t expected = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != expected)
      throw DataError("{}: tensor {}: data begins at byte {}, expected {}: the data {}", path, entry.name,
                      entry.begin, expected, entry.begin < expected ? "overlap" : "has a gap");
    expected = entry.end;
  }
  if (expected != data_bytes)
    throw DataError("{}: header describes {} bytes of data, the file holds {}: {}", path, expected,
                    data_bytes, expected > data_bytes ? "truncated" : "something was appended");
  return entries;
}

}  // namespace safetensors_read_detail

SafetensorsFile read_safetensors(const std::string& path, Digest128* digest) {
  using safetensors_read_detail::Entry;
  File file = File::open_for_reading(path);
  const uint64_t file_bytes = file.size_bytes();
  StreamingDigest running;
  const auto get = [&](void* target, uint64_t size_bytes) {
    for (uint64_t done = 0; done < size_bytes;) {
      char* block = static_cast<char*>(target) + done;
      const size_t wanted = std::min<uint64_t>(safetensors_read_detail::kReadBlockBytes, size_bytes - done);
      if (file.read(block, wanted) != wanted) throw DataError("{}: became shorter while it was read", path);
      if (digest) running.update(block, wanted);
      done += wanted;
    }
  };
  uint64_t header_bytes = 0;
  if (file_bytes < sizeof header_bytes)
    throw DataError("{}: {} bytes are too few for a safetensors file: truncated", path, file_bytes);
  get(&header_bytes, sizeof header_bytes);
  if (header_bytes > safetensors_read_detail::kMaxHeaderBytes)
    throw DataError("{}: header of {} bytes is above the limit of {}; damaged, or not a safetensors file",
                    path, header_bytes, safetensors_read_detail::kMaxHeaderBytes);
  if (header_bytes > file_bytes - sizeof header_bytes)
    throw DataError("{}: header of {} bytes in a file of {}: truncated", path, header_bytes, file_bytes);
  std::string text(header_bytes, '\0');
  get(text.data(), header_bytes);
  const StrictJson header =
      parse_strict_json(path + ": header", text, safetensors_read_detail::kMaxHeaderDepth);

  SafetensorsFile content;
  if (const auto metadata = header.find("__metadata__"); metadata != header.end())
    content.metadata = safetensors_read_detail::parse_metadata(path, *metadata);
  const uint64_t data_bytes = file_bytes - sizeof header_bytes - header_bytes;
  for (const Entry& entry : safetensors_read_detail::parse_entries(path, header, data_bytes)) {
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype));  // [entry.shape], CPU
    get(tensor.mutable_data_ptr(), entry.end - entry.begin);
    if (entry.dtype == at::kBool) {
      const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
      if (std::any_of(bytes, bytes + tensor.numel(), [](uint8_t value) { return value > 1; }))
        throw DataError("{}: tensor {}: a BOOL is neither 0 nor 1", path, entry.name);
    }
    content.tensors.emplace_back(entry.name, std::move(tensor));
  }
  if (digest) *digest = running.value();
  return content;
}

}  // namespace osdn::checkpoint
