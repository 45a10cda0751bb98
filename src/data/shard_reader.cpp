#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "data/detail/hdf5_file.h"
#include "data/shard.h"

namespace osdn::data {
namespace shard_reader_detail {

constexpr const char* kRemedy = "make it again with `osdn prepare`";
constexpr int64_t kVerifyBlock = 1 << 20;  // tokens

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

int64_t load_integer_of(const char* bytes, const detail::Hdf5Type& type) {
  switch (type.size_bytes) {
    case 1:
      return type.is_signed ? load_integer<int8_t>(bytes, false) : load_integer<uint8_t>(bytes, false);
    case 2:
      return type.is_signed ? load_integer<int16_t>(bytes, type.big_endian)
                            : load_integer<uint16_t>(bytes, type.big_endian);
    case 4:
      return type.is_signed ? load_integer<int32_t>(bytes, type.big_endian)
                            : load_integer<uint32_t>(bytes, type.big_endian);
    default:
      return type.is_signed ? load_integer<int64_t>(bytes, type.big_endian)
                            : load_integer<uint64_t>(bytes, type.big_endian);
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

/// The chunk that this thread unpacked last: windows and whole passes both come back to it.
struct UnpackedChunk {
  uint64_t owner = 0;
  uint64_t first = 0;
  std::string bytes;
};

uint64_t next_owner() {
  static std::atomic<uint64_t> counter{0};
  return ++counter;
}

}  // namespace shard_reader_detail

struct ShardReader::Impl {
  std::string path;
  std::optional<File> raw;
  std::optional<detail::Hdf5File> file;
  detail::Hdf5Dataset tokens;
  uint64_t owner = shard_reader_detail::next_owner();
  int64_t num_tokens = 0;
  int64_t vocab_size = 0;
  int64_t text_bytes = 0;
  std::string tokenizer_digest;
  std::string tokens_digest;
  std::vector<std::string> source_names;
  std::vector<int64_t> document_offsets;
  std::vector<int64_t> document_bytes;

  void read_attributes();
  detail::Hdf5Dataset integers(const char* name) const;
  void open_tokens();
  std::vector<int64_t> read_int64(const char* name) const;
  void read_documents();
  void read_raw(uint64_t start, uint64_t size, char* out) const;
  void read_stored(const detail::Hdf5Dataset& dataset, uint64_t first, uint64_t count, char* out) const;
};

void ShardReader::Impl::read_attributes() {
  const auto text = [&](const char* name) {
    const auto value = file->text_attribute(name);
    if (!value)
      throw DataError("{}: not a shard: it has no text attribute `{}` ({})", path, name,
                      shard_reader_detail::kRemedy);
    return *value;
  };
  const auto integer = [&](const char* name) {
    const auto value = file->integer_attribute(name);
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

/// A one-dimensional dataset of integers that can be read.
detail::Hdf5Dataset ShardReader::Impl::integers(const char* name) const {
  std::optional<detail::Hdf5Dataset> dataset = file->dataset(name);
  if (!dataset)
    throw DataError("{}: not a shard: it has no dataset `{}` ({})", path, name, shard_reader_detail::kRemedy);
  if (dataset->type.kind != detail::Hdf5Type::Kind::kInteger)
    throw DataError("{}: dataset `{}`: expected integers, found {} ({})", path, name, dataset->type.name,
                    shard_reader_detail::kRemedy);
  if (dataset->dims.size() != 1)
    throw DataError("{}: dataset `{}`: expected one dimension, found {} of {} ({})", path, name,
                    dataset->dims.size(), dataset->type.name, shard_reader_detail::kRemedy);
  for (const detail::Hdf5Filter& filter : dataset->filters)
    if (filter.id < detail::Hdf5Filter::kDeflate || filter.id > detail::Hdf5Filter::kFletcher32)
      throw DataError(
          "{}: dataset `{}` ({}) is compressed with filter {} \"{}\", which is not installed here ({}, or "
          "unpack it with h5repack -f NONE)",
          path, name, dataset->type.name, filter.id, filter.name, shard_reader_detail::kRemedy);
  return std::move(*dataset);
}

void ShardReader::Impl::open_tokens() {
  tokens = integers("tokens");
  if (const uint64_t found = tokens.num_elements(); found != static_cast<uint64_t>(num_tokens))
    throw DataError("{}: attribute num_tokens says {}, dataset `tokens` holds {} ({})", path, num_tokens,
                    found, shard_reader_detail::kRemedy);
  if (num_tokens == 0)
    throw DataError("{}: the shard holds no tokens ({})", path, shard_reader_detail::kRemedy);
}

std::vector<int64_t> ShardReader::Impl::read_int64(const char* name) const {
  const detail::Hdf5Dataset dataset = integers(name);
  const uint64_t size = dataset.num_elements();  // whose bytes lie in the file
  std::vector<char> bytes(size * dataset.type.size_bytes);
  read_stored(dataset, 0, size, bytes.data());
  std::vector<int64_t> values(size);
  for (size_t i = 0; i < size; ++i)
    values[i] =
        shard_reader_detail::load_integer_of(bytes.data() + i * dataset.type.size_bytes, dataset.type);
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
  for (const int64_t bytes : document_bytes)
    if (bytes < 0 || __builtin_add_overflow(text_bytes, bytes, &text_bytes))
      throw DataError("{}: document_bytes: expected lengths, found {} ({})", path, bytes,
                      shard_reader_detail::kRemedy);
}

void ShardReader::Impl::read_raw(uint64_t start, uint64_t size, char* out) const {
  for (uint64_t done = 0; done < size;) {
    const ssize_t got = ::pread(raw->descriptor(), out + done, size - done, static_cast<off_t>(start + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw EnvironmentError("{}: reading {} bytes at {} failed: {}", path, size, start,
                             std::strerror(errno));
    if (got == 0)
      throw DataError("{}: the file has become shorter while it was read: nothing at byte {} ({})", path,
                      start + done, shard_reader_detail::kRemedy);
    done += static_cast<uint64_t>(got);
  }
}

/// Elements as they are stored.
void ShardReader::Impl::read_stored(const detail::Hdf5Dataset& dataset, uint64_t first, uint64_t count,
                                    char* out) const {
  const uint64_t width = dataset.type.size_bytes;
  if (!dataset.chunked) {
    read_raw(dataset.address + first * width, count * width, out);
    return;
  }
  thread_local shard_reader_detail::UnpackedChunk unpacked;
  for (uint64_t done = 0; done < count;) {
    const uint64_t position = first + done;
    const detail::Hdf5Chunk& chunk = dataset.chunks[position / dataset.chunk_elements];
    const uint64_t inside = position - chunk.first;
    const uint64_t taken = std::min(count - done, dataset.chunk_elements - inside);
    char* target = out + done * width;
    if (dataset.filters.empty()) {
      read_raw(chunk.address + inside * width, taken * width, target);
    } else {
      if (unpacked.owner != owner || unpacked.first != chunk.address) {
        unpacked.owner = 0;  // stays so when the chunk is damaged
        std::string stored(chunk.size_bytes, '\0');
        read_raw(chunk.address, chunk.size_bytes, stored.data());
        unpacked.bytes = detail::unpack_chunk(dataset, chunk, std::move(stored), path);
        unpacked.first = chunk.address;
        unpacked.owner = owner;
      }
      std::memcpy(target, unpacked.bytes.data() + inside * width, taken * width);
    }
    done += taken;
  }
}

ShardReader::ShardReader(const std::string& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->raw = shard_reader_detail::open_checked(path);
  impl_->file.emplace(*impl_->raw);
  impl_->read_attributes();
  impl_->open_tokens();
  impl_->read_documents();
  impl_->file.reset();
}

ShardReader::~ShardReader() = default;

void ShardReader::read(int64_t position, int64_t count, int32_t* out) const {
  OSDN_ASSERT(position >= 0 && count >= 0 && position + count <= impl_->num_tokens, "{}: tokens {}+{} of {}",
              impl_->path, position, count, impl_->num_tokens);
  if (count == 0) return;
  thread_local std::vector<char> bytes;
  const detail::Hdf5Type& type = impl_->tokens.type;
  bytes.resize(static_cast<size_t>(count) * type.size_bytes);
  impl_->read_stored(impl_->tokens, static_cast<uint64_t>(position), static_cast<uint64_t>(count),
                     bytes.data());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t token =
        shard_reader_detail::load_integer_of(bytes.data() + static_cast<size_t>(i) * type.size_bytes, type);
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
std::string ShardReader::stored_type() const { return impl_->tokens.type.name; }

}  // namespace osdn::data
