// A safetensors file as bytes, read and written without the code under test and without LibTorch.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "base/fs.h"
#include "base/json.h"

namespace osdn::test {

struct RawTensor {
  std::string dtype;
  Json shape;
  std::string bytes;
  bool operator==(const RawTensor&) const = default;
};

using RawTensors = std::map<std::string, RawTensor>;

inline RawTensors read_raw_safetensors(const std::string& path) {
  const std::string text = read_file(path);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), sizeof header_bytes);
  const Json header = Json::parse(text.substr(8, header_bytes));
  RawTensors tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const uint64_t begin = entry["data_offsets"][0];
    const uint64_t end = entry["data_offsets"][1];
    tensors[name] = {entry["dtype"], entry["shape"], text.substr(8 + header_bytes + begin, end - begin)};
  }
  return tensors;
}

inline void write_raw_safetensors(const std::string& path, const RawTensors& tensors) {
  Json header = Json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const uint64_t header_bytes = text.size();
  atomic_write(path, std::string(reinterpret_cast<const char*>(&header_bytes), 8) + text + data);
}

/// All tensors of a model directory, sharded or not.
inline RawTensors read_raw_model(const std::string& directory) {
  RawTensors all;
  for (const std::string& path : glob_paths(directory + "/model*.safetensors"))
    all.merge(read_raw_safetensors(path));
  return all;
}

}  // namespace osdn::test
