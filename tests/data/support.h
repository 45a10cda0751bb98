// Helpers of the data tests: shards of known tokens, foreign HDF5 files, caught messages.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "data/shard.h"

namespace osdn::data::test {

/// The message of the error of type E that `act` throws; empty when it throws none.
template <typename E, typename Act>
std::string message_of(Act&& act) {
  try {
    act();
  } catch (const E& failure) {
    return failure.what();
  }
  return {};
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::vector<int32_t> numbered(int64_t first, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(first));
  return tokens;
}

/// A shard whose tokens count on from `first`; `lengths`: of its documents.
inline void write_numbered_shard(const std::string& path, int64_t first, const std::vector<int64_t>& lengths,
                                 int64_t vocab_size = 1 << 20, const std::string& tokenizer = "tok") {
  ShardWriter writer(path,
                     {.tokenizer_digest = tokenizer, .vocab_size = vocab_size, .source_names = {"test"}});
  for (const int64_t length : lengths) {
    writer.add_document(numbered(first, length), length * 4);
    first += length;
  }
  writer.finish();
}

/// A shard made by hand with HDF5, so that its tokens may have any type and be laid out in any way.
struct ForeignShard {
  hid_t stored_type = H5T_STD_U16LE;
  hid_t memory_type = H5T_NATIVE_INT64;
  const void* values = nullptr;  // null: nothing is written
  hsize_t dims[2] = {0, 0};
  int rank = 1;
  hid_t creation = H5P_DEFAULT;  // property list of the dataset
  int64_t vocab_size = 70000;
  int64_t format_version = 1;
  std::vector<int64_t> offsets;  // empty: one document
  bool attributes = true;
};

inline void put_text(hid_t file, const char* name, const std::string& value) {
  const hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, value.size());
  const hid_t space = H5Screate(H5S_SCALAR);
  const hid_t attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  H5Awrite(attribute, type, value.data());
  H5Aclose(attribute);
  H5Sclose(space);
  H5Tclose(type);
}

inline void put_number(hid_t file, const char* name, int64_t value) {
  const hid_t space = H5Screate(H5S_SCALAR);
  const hid_t attribute = H5Acreate2(file, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
  H5Awrite(attribute, H5T_NATIVE_INT64, &value);
  H5Aclose(attribute);
  H5Sclose(space);
}

inline void put_numbers(hid_t file, const char* name, const std::vector<int64_t>& values) {
  const hsize_t size = values.size();
  const hid_t space = H5Screate_simple(1, &size, nullptr);
  const hid_t dataset = H5Dcreate2(file, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  H5Dwrite(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  H5Dclose(dataset);
  H5Sclose(space);
}

/// Leaves the file open and returns it, for tests of unclosed files; close with H5Fclose.
inline hid_t open_foreign_shard(const std::string& path, const ForeignShard& shard) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const auto total = static_cast<int64_t>(shard.dims[0] * (shard.rank > 1 ? shard.dims[1] : 1));
  std::vector<int64_t> offsets = shard.offsets;
  if (offsets.empty()) offsets = {0, total};
  if (shard.attributes) {
    put_text(file, "format", "osdn-shard");
    put_text(file, "tokenizer_digest", "tok");
    put_text(file, "tokens_digest", "unknown");
    put_text(file, "sources", "hand");
    put_number(file, "format_version", shard.format_version);
    put_number(file, "vocab_size", shard.vocab_size);
    put_number(file, "num_tokens", total);
    put_number(file, "num_documents", static_cast<int64_t>(offsets.size()) - 1);
  }
  put_numbers(file, "document_offsets", offsets);
  put_numbers(file, "document_bytes", std::vector<int64_t>(offsets.size() - 1, 10));
  const hid_t space = H5Screate_simple(shard.rank, shard.dims, nullptr);
  const hid_t dataset =
      H5Dcreate2(file, "tokens", shard.stored_type, space, H5P_DEFAULT, shard.creation, H5P_DEFAULT);
  if (shard.values != nullptr)
    H5Dwrite(dataset, shard.memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, shard.values);
  H5Dclose(dataset);
  H5Sclose(space);
  return file;
}

inline void write_foreign_shard(const std::string& path, const ForeignShard& shard) {
  H5Fclose(open_foreign_shard(path, shard));
}

}  // namespace osdn::data::test
