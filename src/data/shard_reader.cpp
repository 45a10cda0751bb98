#include <fcntl.h>
#include <hdf5.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "data/detail/hdf5.h"
#include "data/shard.h"

namespace osdn::data {
namespace shard_reader_detail {

using detail::Hdf5Id;

constexpr const char* kRemedy = "make it again with `osdn prepare`";
constexpr int64_t kVerifyBlock = 1 << 20;  // tokens

/// How the tokens lie in the file.
struct Storage {
  std::string type_name;
  uint64_t file_offset = 0;  // bytes, of contiguous data
  size_t size_bytes = 2;     // of one token
  bool contiguous = false;   // at file_offset, so that no library is needed
  bool big_endian = false;
  bool is_signed = false;
};

template <typename T>
int64_t load_integer(const char* bytes, bool big_endian) {
  T value;
  char ordered[sizeof(T)];
  std::memcpy(ordered, bytes, sizeof(T));
  if (big_endian) std::reverse(ordered, ordered + sizeof(T));
  std::memcpy(&value, ordered, sizeof(T));
  // Above int64 nothing is a token: one value that no vocabulary holds stands for them.
  if constexpr (std::is_same_v<T, uint64_t>)
    return value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
               ? std::numeric_limits<int64_t>::max()
               : static_cast<int64_t>(value);
  return static_cast<int64_t>(value);
}

int64_t load_token(const char* bytes, const Storage& storage, bool big_endian) {
  switch (storage.size_bytes) {
    case 1:
      return storage.is_signed ? load_integer<int8_t>(bytes, false) : load_integer<uint8_t>(bytes, false);
    case 2:
      return storage.is_signed ? load_integer<int16_t>(bytes, big_endian)
                               : load_integer<uint16_t>(bytes, big_endian);
    case 4:
      return storage.is_signed ? load_integer<int32_t>(bytes, big_endian)
                               : load_integer<uint32_t>(bytes, big_endian);
    default:
      return storage.is_signed ? load_integer<int64_t>(bytes, big_endian)
                               : load_integer<uint64_t>(bytes, big_endian);
  }
}

/// Opens the file, and refuses what HDF5 would answer with a riddle.
File open_checked(const std::string& path) {
  if (!std::filesystem::exists(path)) throw EnvironmentError("{}: no such shard", path);
  if (std::filesystem::is_directory(path))
    throw EnvironmentError("{}: expected a shard, found a directory", path);
  File file = File::open_for_reading(path);
  // HDF5 locks files that it writes. Readers here take no lock (many file systems have none), they only look.
  if (::flock(file.descriptor(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw EnvironmentError(
        "{}: another process has the shard open for writing (errno {}: {}); wait for it to end or end "
        "it, shards are never changed in place",
        path, EWOULDBLOCK, std::strerror(EWOULDBLOCK));
  ::flock(file.descriptor(), LOCK_UN);
  const uint64_t size = file.size_bytes();
  if (size == 0) throw DataError("{}: expected a shard, found an empty file ({})", path, kRemedy);
  char signature[8] = {};
  file.read(signature, sizeof(signature));
  if (std::memcmp(signature, "\x89HDF\r\n\x1a\n", 8) != 0)
    throw DataError("{}: expected an HDF5 file, found {} bytes of another format ({})", path, size, kRemedy);
  return file;
}

bool has_link(int64_t file, const char* name) { return H5Lexists(file, name, H5P_DEFAULT) > 0; }

std::optional<int64_t> integer_attribute(int64_t file, const char* name) {
  if (H5Aexists(file, name) <= 0) return std::nullopt;
  const Hdf5Id attribute(H5Aopen(file, name, H5P_DEFAULT), H5Aclose);
  const Hdf5Id type(H5Aget_type(attribute.get()), H5Tclose);
  const Hdf5Id space(H5Aget_space(attribute.get()), H5Sclose);
  int64_t value = 0;
  if (H5Tget_class(type.get()) != H5T_INTEGER || H5Sget_simple_extent_npoints(space.get()) != 1 ||
      H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0)
    return std::nullopt;
  return value;
}

std::optional<std::string> text_attribute(int64_t file, const char* name) {
  if (H5Aexists(file, name) <= 0) return std::nullopt;
  const Hdf5Id attribute(H5Aopen(file, name, H5P_DEFAULT), H5Aclose);
  const Hdf5Id type(H5Aget_type(attribute.get()), H5Tclose);
  const Hdf5Id space(H5Aget_space(attribute.get()), H5Sclose);
  if (H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) > 0 ||
      H5Sget_simple_extent_npoints(space.get()) != 1)
    return std::nullopt;
  std::string value(H5Tget_size(type.get()), '\0');
  if (H5Aread(attribute.get(), type.get(), value.data()) < 0) return std::nullopt;
  value.resize(std::min(value.size(), value.find('\0')));
  return value;
}

}  // namespace shard_reader_detail

struct ShardReader::Impl {
  std::string path;
  std::optional<File> raw;
  detail::Hdf5Id file;  // both open only when reading needs the library
  detail::Hdf5Id tokens;
  shard_reader_detail::Storage storage;
  int64_t num_tokens = 0;
  int64_t vocab_size = 0;
  int64_t text_bytes = 0;
  std::string tokenizer_digest;
  std::string tokens_digest;
  std::vector<std::string> source_names;
  std::vector<int64_t> document_offsets;
  std::vector<int64_t> document_bytes;

  void read_attributes();
  int64_t open_dataset(const char* name, detail::Hdf5Id* dataset, std::string* type_name) const;
  void open_tokens();
  void check_filters(int64_t creation) const;
  std::vector<int64_t> read_int64(const char* name) const;
  void read_documents();
  void read_raw(int64_t position, int64_t count, std::vector<char>* bytes) const;
  void read_through_library(int64_t position, int64_t count, std::vector<char>* bytes) const;
};

void ShardReader::Impl::read_attributes() {
  const auto text = [&](const char* name) {
    const auto value = shard_reader_detail::text_attribute(file.get(), name);
    if (!value)
      throw DataError("{}: not a shard: it has no text attribute `{}` ({})", path, name,
                      shard_reader_detail::kRemedy);
    return *value;
  };
  const auto integer = [&](const char* name) {
    const auto value = shard_reader_detail::integer_attribute(file.get(), name);
    if (!value)
      throw DataError("{}: not a shard: it has no integer attribute `{}` ({})", path, name,
                      shard_reader_detail::kRemedy);
    return *value;
  };
  if (const std::string format = text("format"); format != "osdn-shard")
    throw DataError("{}: expected the format osdn-shard, found \"{}\"", path, format);
  if (const int64_t version = integer("format_version"); version != 1)
    throw DataError("{}: expected format version 1, found {} (update the program or {})", path, version,
                    shard_reader_detail::kRemedy);
  vocab_size = integer("vocab_size");
  if (vocab_size < 1 || vocab_size > std::numeric_limits<int32_t>::max())
    throw DataError("{}: attribute vocab_size: expected 1 to 2^31 - 1, found {}", path, vocab_size);
  tokenizer_digest = text("tokenizer_digest");
  tokens_digest = text("tokens_digest");
  num_tokens = integer("num_tokens");
  const std::string sources = text("sources");
  for (size_t begin = 0; begin <= sources.size();) {
    const size_t end = std::min(sources.find('\n', begin), sources.size());
    if (end > begin) source_names.push_back(sources.substr(begin, end - begin));
    begin = end + 1;
  }
}

/// Number of elements of a one-dimensional integer dataset.
int64_t ShardReader::Impl::open_dataset(const char* name, detail::Hdf5Id* dataset,
                                        std::string* type_name) const {
  if (!shard_reader_detail::has_link(file.get(), name))
    throw DataError("{}: not a shard: it has no dataset `{}` ({})", path, name, shard_reader_detail::kRemedy);
  *dataset = detail::Hdf5Id(H5Dopen2(file.get(), name, H5P_DEFAULT), H5Dclose);
  if (!dataset->valid())
    throw DataError("{}: cannot open dataset `{}`: {}", path, name, detail::hdf5_failure());
  const detail::Hdf5Id type(H5Dget_type(dataset->get()), H5Tclose);
  const detail::Hdf5Id space(H5Dget_space(dataset->get()), H5Sclose);
  *type_name = detail::hdf5_type_name(type.get());
  const size_t size = H5Tget_size(type.get());
  if (H5Tget_class(type.get()) != H5T_INTEGER || (size != 1 && size != 2 && size != 4 && size != 8))
    throw DataError("{}: dataset `{}`: expected integers, found {} ({})", path, name, *type_name,
                    shard_reader_detail::kRemedy);
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank != 1)
    throw DataError("{}: dataset `{}`: expected one dimension, found {} of {} ({})", path, name, rank,
                    *type_name, shard_reader_detail::kRemedy);
  return H5Sget_simple_extent_npoints(space.get());
}

void ShardReader::Impl::check_filters(int64_t creation) const {
  for (int i = 0; i < H5Pget_nfilters(creation); ++i) {
    unsigned flags = 0;
    unsigned config = 0;
    size_t num_values = 0;
    char name[64] = {};
    const H5Z_filter_t filter = H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &num_values,
                                               nullptr, sizeof(name), name, &config);
    if (H5Zfilter_avail(filter) <= 0)
      throw DataError(
          "{}: dataset `tokens` ({}) is compressed with filter {} \"{}\", which is not installed here ({}, "
          "or "
          "unpack it with h5repack -f NONE)",
          path, storage.type_name, static_cast<int>(filter), name, shard_reader_detail::kRemedy);
  }
}

void ShardReader::Impl::open_tokens() {
  const int64_t found = open_dataset("tokens", &tokens, &storage.type_name);
  if (found != num_tokens)
    throw DataError("{}: attribute num_tokens says {}, dataset `tokens` holds {} ({})", path, num_tokens,
                    found, shard_reader_detail::kRemedy);
  if (num_tokens == 0)
    throw DataError("{}: the shard holds no tokens ({})", path, shard_reader_detail::kRemedy);
  const detail::Hdf5Id type(H5Dget_type(tokens.get()), H5Tclose);
  const detail::Hdf5Id creation(H5Dget_create_plist(tokens.get()), H5Pclose);
  check_filters(creation.get());
  storage.size_bytes = H5Tget_size(type.get());
  storage.big_endian = H5Tget_order(type.get()) == H5T_ORDER_BE;
  storage.is_signed = H5Tget_sign(type.get()) != H5T_SGN_NONE;
  const haddr_t address = H5Dget_offset(tokens.get());
  storage.contiguous = H5Pget_layout(creation.get()) == H5D_CONTIGUOUS && address != HADDR_UNDEF &&
                       H5Pget_external_count(creation.get()) == 0;
  if (!storage.contiguous) return;
  storage.file_offset = address;
  const uint64_t end = address + static_cast<uint64_t>(num_tokens) * storage.size_bytes;
  if (end > raw->size_bytes())
    throw DataError("{}: truncated: {} tokens end at byte {}, the file has {} ({})", path, num_tokens, end,
                    raw->size_bytes(), shard_reader_detail::kRemedy);
}

std::vector<int64_t> ShardReader::Impl::read_int64(const char* name) const {
  detail::Hdf5Id dataset;
  std::string type_name;
  const int64_t size = open_dataset(name, &dataset, &type_name);
  std::vector<int64_t> values(static_cast<size_t>(size));
  if (size > 0 && H5Dread(dataset.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0)
    throw DataError("{}: cannot read dataset `{}`: {} ({})", path, name, detail::hdf5_failure(),
                    shard_reader_detail::kRemedy);
  return values;
}

void ShardReader::Impl::read_documents() {
  document_offsets = read_int64("document_offsets");
  document_bytes = read_int64("document_bytes");
  if (document_offsets.size() < 2 || document_offsets.front() != 0 || document_offsets.back() != num_tokens)
    throw DataError("{}: document_offsets: expected 0 to {}, found {} entries{} ({})", path, num_tokens,
                    document_offsets.size(),
                    document_offsets.empty()
                        ? std::string()
                        : fmt::format(" from {} to {}", document_offsets.front(), document_offsets.back()),
                    shard_reader_detail::kRemedy);
  for (size_t i = 1; i < document_offsets.size(); ++i)
    if (document_offsets[i] <= document_offsets[i - 1])
      throw DataError("{}: document_offsets: entry {} is {} after {}, expected increasing ones ({})", path, i,
                      document_offsets[i], document_offsets[i - 1], shard_reader_detail::kRemedy);
  if (document_bytes.size() + 1 != document_offsets.size())
    throw DataError("{}: document_bytes: expected {} entries, found {} ({})", path,
                    document_offsets.size() - 1, document_bytes.size(), shard_reader_detail::kRemedy);
  for (const int64_t bytes : document_bytes) text_bytes += bytes;
}

void ShardReader::Impl::read_raw(int64_t position, int64_t count, std::vector<char>* bytes) const {
  size_t done = 0;
  const uint64_t start = storage.file_offset + static_cast<uint64_t>(position) * storage.size_bytes;
  bytes->resize(static_cast<size_t>(count) * storage.size_bytes);
  while (done < bytes->size()) {
    const ssize_t got = ::pread(raw->descriptor(), bytes->data() + done, bytes->size() - done,
                                static_cast<off_t>(start + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw EnvironmentError("{}: reading {} bytes at {} failed: {}", path, bytes->size(), start,
                             std::strerror(errno));
    if (got == 0)
      throw DataError("{}: the file has become shorter while it was read: nothing at byte {} ({})", path,
                      start + done, shard_reader_detail::kRemedy);
    done += static_cast<size_t>(got);
  }
}

/// Chunked, compressed or external data, in the file's own integer type but this machine's byte order.
void ShardReader::Impl::read_through_library(int64_t position, int64_t count,
                                             std::vector<char>* bytes) const {
  const detail::Hdf5Guard guard;
  bytes->resize(static_cast<size_t>(count) * storage.size_bytes);
  const auto first = static_cast<hsize_t>(position);
  const auto size = static_cast<hsize_t>(count);
  const detail::Hdf5Id stored(H5Dget_type(tokens.get()), H5Tclose);
  const detail::Hdf5Id native(H5Tget_native_type(stored.get(), H5T_DIR_ASCEND), H5Tclose);
  const detail::Hdf5Id file_space(H5Dget_space(tokens.get()), H5Sclose);
  const detail::Hdf5Id memory_space(H5Screate_simple(1, &size, nullptr), H5Sclose);
  if (H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, &first, nullptr, &size, nullptr) < 0 ||
      H5Dread(tokens.get(), native.get(), memory_space.get(), file_space.get(), H5P_DEFAULT, bytes->data()) <
          0)
    throw DataError("{}: cannot read {} tokens at {}: {} ({})", path, count, position, detail::hdf5_failure(),
                    shard_reader_detail::kRemedy);
}

ShardReader::ShardReader(const std::string& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->raw = shard_reader_detail::open_checked(path);
  const detail::Hdf5Guard guard;
  const detail::Hdf5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(access.get(), false, true);
  impl_->file = detail::Hdf5Id(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!impl_->file.valid())
    throw DataError("{}: truncated or damaged HDF5 file, {} bytes: {} ({})", path, impl_->raw->size_bytes(),
                    detail::hdf5_failure(), shard_reader_detail::kRemedy);
  impl_->read_attributes();
  impl_->open_tokens();
  impl_->read_documents();
  if (impl_->storage.contiguous) {
    impl_->tokens.reset();
    impl_->file.reset();
  }
}

ShardReader::~ShardReader() = default;

void ShardReader::read(int64_t position, int64_t count, int32_t* out) const {
  OSDN_ASSERT(position >= 0 && count >= 0 && position + count <= impl_->num_tokens, "{}: tokens {}+{} of {}",
              impl_->path, position, count, impl_->num_tokens);
  thread_local std::vector<char> bytes;
  const auto& storage = impl_->storage;
  if (count == 0) return;
  if (storage.contiguous) {
    impl_->read_raw(position, count, &bytes);
  } else {
    impl_->read_through_library(position, count, &bytes);
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t token =
        shard_reader_detail::load_token(bytes.data() + static_cast<size_t>(i) * storage.size_bytes, storage,
                                        storage.contiguous && storage.big_endian);
    if (token < 0 || token >= impl_->vocab_size)
      throw DataError("{}: token {} is {}, expected 0 to {}, the vocabulary's range ({})", impl_->path,
                      position + i, token, impl_->vocab_size - 1, shard_reader_detail::kRemedy);
    out[i] = static_cast<int32_t>(token);
  }
}

void ShardReader::verify() const {
  const size_t width = impl_->vocab_size > 65536 ? 4 : 2;
  StreamingDigest digest;
  std::vector<int32_t> ids(
      static_cast<size_t>(std::min(shard_reader_detail::kVerifyBlock, impl_->num_tokens)));
  std::vector<char> bytes(ids.size() * width);
  for (int64_t position = 0; position < impl_->num_tokens;) {
    const int64_t count = std::min(shard_reader_detail::kVerifyBlock, impl_->num_tokens - position);
    read(position, count, ids.data());
    for (size_t i = 0; i < static_cast<size_t>(count); ++i)
      for (size_t byte = 0; byte < width; ++byte)
        bytes[i * width + byte] = static_cast<char>(static_cast<uint32_t>(ids[i]) >> (8 * byte));
    digest.update(bytes.data(), static_cast<size_t>(count) * width);
    position += count;
  }
  if (const std::string found = digest.value().hex(); found != impl_->tokens_digest)
    throw DataError("{}: damaged: the tokens have digest {}, the shard was written with {} ({})", impl_->path,
                    found, impl_->tokens_digest, shard_reader_detail::kRemedy);
}

const std::string& ShardReader::path() const { return impl_->path; }
int64_t ShardReader::num_tokens() const { return impl_->num_tokens; }
int64_t ShardReader::num_documents() const { return static_cast<int64_t>(impl_->document_bytes.size()); }
int64_t ShardReader::text_bytes() const { return impl_->text_bytes; }
int64_t ShardReader::vocab_size() const { return impl_->vocab_size; }
const std::string& ShardReader::tokenizer_digest() const { return impl_->tokenizer_digest; }
const std::string& ShardReader::tokens_digest() const { return impl_->tokens_digest; }
const std::vector<std::string>& ShardReader::source_names() const { return impl_->source_names; }
const std::vector<int64_t>& ShardReader::document_offsets() const { return impl_->document_offsets; }
const std::vector<int64_t>& ShardReader::document_bytes() const { return impl_->document_bytes; }
std::string ShardReader::stored_type() const { return impl_->storage.type_name; }

}  // namespace osdn::data
