#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "data/detail/hdf5.h"
#include "data/shard.h"

namespace osdn::data {
namespace shard_writer_detail {

constexpr size_t kBlockBytes = 4 << 20;
// An attribute of the oldest, most widely read file format holds at most 64 KB.
constexpr size_t kMaxSourceBytes = 32 << 10;

using detail::Hdf5Id;

/// Everything that can fail while a shard is written is the medium's fault: the content was checked before.
int64_t check(const std::string& path, const char* what, int64_t result) {
  if (result < 0) throw EnvironmentError("{}: HDF5 cannot {}: {}", path, what, detail::hdf5_failure());
  return result;
}

std::string join_sources(const std::vector<std::string>& names) {
  std::string joined;
  for (size_t i = 0; i < names.size(); ++i) {
    if (joined.size() + names[i].size() > kMaxSourceBytes)
      return joined + fmt::format("\n... and {} more", names.size() - i);
    joined += (i > 0 ? "\n" : "") + names[i];
  }
  return joined;
}

class Hdf5File {
 public:
  explicit Hdf5File(const std::string& path) : path_(path) {
    const Hdf5Id access(check(path_, "prepare the file", H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
    H5Pset_file_locking(access.get(), false,
                        true);  // not all file systems have locks; the name is ours alone
    H5Pset_alignment(access.get(), kBlockBytes / 64, 4096);
    file_ = Hdf5Id(
        check(path_, "create the file", H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get())),
        H5Fclose);
  }

  void put(const char* name, int64_t value) { put_attribute(name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value); }
  void put(const char* name, const std::string& value) {
    const Hdf5Id type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.get(), std::max<size_t>(value.size(), 1));
    H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
    put_attribute(name, type.get(), type.get(), value.empty() ? "\0" : value.data());
  }

  /// Contiguous, allocated at once, without times: equal content gives equal bytes.
  Hdf5Id create_dataset(const char* name, hid_t stored_type, size_t size) {
    const hsize_t dims[1] = {size};
    const Hdf5Id space(check(path_, "describe a dataset", H5Screate_simple(1, dims, nullptr)), H5Sclose);
    const Hdf5Id creation(check(path_, "describe a dataset", H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
    H5Pset_layout(creation.get(), H5D_CONTIGUOUS);
    H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);
    H5Pset_obj_track_times(creation.get(), false);
    return {check(path_, "create a dataset",
                  H5Dcreate2(file_.get(), name, stored_type, space.get(), H5P_DEFAULT, creation.get(),
                             H5P_DEFAULT)),
            H5Dclose};
  }

  /// Writes a dataset block by block: `next` gives the address and the number of the next values, 0 at the
  /// end.
  template <typename Next>
  void put_blocks(const char* name, hid_t type, size_t size, Next&& next) {
    Hdf5Id dataset = create_dataset(name, type, size);
    const Hdf5Id file_space(check(path_, "describe a dataset", H5Dget_space(dataset.get())), H5Sclose);
    hsize_t position = 0;
    const void* values = nullptr;
    while (const hsize_t count = next(&values)) {
      const Hdf5Id memory_space(check(path_, "describe a block", H5Screate_simple(1, &count, nullptr)),
                                H5Sclose);
      H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, &position, nullptr, &count, nullptr);
      check(path_, "write a dataset",
            H5Dwrite(dataset.get(), type, memory_space.get(), file_space.get(), H5P_DEFAULT, values));
      position += count;
    }
    OSDN_ASSERT(position == size, "{}: {} of {} values of {} staged", path_, position, size, name);
    // The last values may only be written now.
    check(path_, "close a dataset", dataset.close());
  }

  void close() {
    check(path_, "flush the file", H5Fflush(file_.get(), H5F_SCOPE_LOCAL));
    check(path_, "close the file", file_.close());
  }

 private:
  void put_attribute(const char* name, hid_t stored_type, hid_t memory_type, const void* value) {
    const Hdf5Id space(H5Screate(H5S_SCALAR), H5Sclose);
    Hdf5Id attribute(check(path_, "create an attribute",
                           H5Acreate2(file_.get(), name, stored_type, space.get(), H5P_DEFAULT, H5P_DEFAULT)),
                     H5Aclose);
    check(path_, "write an attribute", H5Awrite(attribute.get(), memory_type, value));
    check(path_, "close an attribute", attribute.close());
  }

  std::string path_;
  Hdf5Id file_;
};

/// A row of the table of documents as it waits for the end.
struct DocumentRow {
  int64_t end = 0;  // in tokens of the shard
  int64_t text_bytes = 0;
};

/// Blocks of whole values out of a file.
class BlockSource {
 public:
  BlockSource(const std::string& path, size_t value_bytes)
      : file_(File::open_for_reading(path)), value_bytes_(value_bytes), block_(kBlockBytes) {}
  size_t next() {
    size_t size = 0;
    while (size < block_.size()) {
      const size_t got = file_.read(block_.data() + size, block_.size() - size);
      if (got == 0) break;
      size += got;
    }
    return size / value_bytes_;
  }
  const char* data() const { return block_.data(); }

 private:
  File file_;
  size_t value_bytes_;
  std::vector<char> block_;
};

std::string tokens_path(const std::string& path) { return path + ".tokens"; }
std::string documents_path(const std::string& path) { return path + ".documents"; }

}  // namespace shard_writer_detail

struct ShardWriter::Impl {
  std::string path;
  ShardMeta meta;
  bool wide = false;  // uint32
  std::optional<File> tokens_file;
  std::optional<File> documents_file;
  StreamingDigest digest;
  ShardPosition position;
  std::vector<char> tokens;  // not yet in the file: as they are stored, little-endian
  std::vector<shard_writer_detail::DocumentRow> documents;  // not yet in the file
  bool kept = false;                                        // sync was called: the two files stay
  bool continued = false;

  Impl(const std::string& shard_path, ShardMeta shard_meta)
      : path(shard_path), meta(std::move(shard_meta)), wide(meta.vocab_size > 65536) {}
  size_t token_bytes() const { return wide ? 4 : 2; }
  void continue_from(ShardPosition from);
  void flush();
  void write_hdf5(const std::string& target);
  bool is_finished() const;
};

void ShardWriter::Impl::continue_from(ShardPosition from) {
  const auto cut = [](const std::string& file, uint64_t size) {
    File open = File::open_for_appending(file);
    if (open.size_bytes() < size)
      throw DataError(
          "{}: expected at least {} bytes from an interrupted process, found {} (remove the folder that "
          "holds it to start over)",
          file, size, open.size_bytes());
    open.truncate(size);
    return open;
  };
  tokens_file =
      cut(shard_writer_detail::tokens_path(path), static_cast<uint64_t>(from.tokens) * token_bytes());
  documents_file = cut(shard_writer_detail::documents_path(path),
                       static_cast<uint64_t>(from.documents) * sizeof(shard_writer_detail::DocumentRow));
  shard_writer_detail::BlockSource source(shard_writer_detail::tokens_path(path), token_bytes());
  while (const size_t count = source.next()) digest.update(source.data(), count * token_bytes());
  position = from;
  kept = true;
  continued = true;
}

void ShardWriter::Impl::flush() {
  tokens_file->write(tokens.data(), tokens.size());
  digest.update(tokens.data(), tokens.size());
  tokens.clear();
  documents_file->write(documents.data(), documents.size() * sizeof(shard_writer_detail::DocumentRow));
  documents.clear();
}

void ShardWriter::Impl::write_hdf5(const std::string& target) {
  using shard_writer_detail::DocumentRow;
  const detail::Hdf5Guard guard;
  shard_writer_detail::Hdf5File file(target);
  file.put("format", std::string("osdn-shard"));
  file.put("format_version", int64_t{1});
  file.put("vocab_size", meta.vocab_size);
  file.put("tokenizer_digest", meta.tokenizer_digest);
  file.put("sources", shard_writer_detail::join_sources(meta.source_names));
  file.put("num_tokens", position.tokens);
  file.put("num_documents", position.documents);
  file.put("tokens_digest", digest.value().hex());
  // `leads`: a 0 comes before the column.
  const auto put_column = [&](const char* name, bool leads, int64_t DocumentRow::*field) {
    shard_writer_detail::BlockSource rows(shard_writer_detail::documents_path(path), sizeof(DocumentRow));
    std::vector<int64_t> column;
    file.put_blocks(name, H5T_STD_I64LE, static_cast<size_t>(position.documents) + (leads ? 1 : 0),
                    [&, first = leads](const void** values) mutable {
                      column.assign(std::exchange(first, false) ? 1 : 0, 0);
                      const size_t count = rows.next();
                      for (size_t i = 0; i < count; ++i) {
                        DocumentRow row;
                        std::memcpy(&row, rows.data() + i * sizeof(row), sizeof(row));
                        column.push_back(row.*field);
                      }
                      *values = column.data();
                      return static_cast<hsize_t>(column.size());
                    });
  };
  put_column("document_offsets", true, &DocumentRow::end);
  put_column("document_bytes", false, &DocumentRow::text_bytes);
  shard_writer_detail::BlockSource source(shard_writer_detail::tokens_path(path), token_bytes());
  file.put_blocks("tokens", wide ? H5T_STD_U32LE : H5T_STD_U16LE, static_cast<size_t>(position.tokens),
                  [&](const void** values) {
                    const size_t count = source.next();
                    *values = source.data();
                    return static_cast<hsize_t>(count);
                  });
  file.close();
}

/// Whether an earlier process finished just this shard before it died.
bool ShardWriter::Impl::is_finished() const {
  if (!continued || !std::filesystem::exists(path)) return false;
  try {
    const ShardReader reader(path);
    return reader.tokens_digest() == digest.value().hex() && reader.num_documents() == position.documents &&
           reader.tokenizer_digest() == meta.tokenizer_digest;
  } catch (const DataError&) {
    return false;
  }
}

ShardWriter::ShardWriter(const std::string& path, ShardMeta meta)
    : impl_(std::make_unique<Impl>(path, std::move(meta))) {
  impl_->tokens_file = File::create(shard_writer_detail::tokens_path(path));
  impl_->documents_file = File::create(shard_writer_detail::documents_path(path));
}

ShardWriter::ShardWriter(const std::string& path, ShardMeta meta, ShardPosition position)
    : impl_(std::make_unique<Impl>(path, std::move(meta))) {
  impl_->continue_from(position);
}

ShardWriter::~ShardWriter() {
  if (!impl_->kept) remove_parts(impl_->path);
}

void ShardWriter::remove_parts(const std::string& path) {
  ::unlink(shard_writer_detail::tokens_path(path).c_str());
  ::unlink(shard_writer_detail::documents_path(path).c_str());
}

ShardPosition ShardWriter::position() const { return impl_->position; }

void ShardWriter::sync() {
  impl_->flush();
  impl_->tokens_file->sync();
  impl_->documents_file->sync();
  impl_->kept = true;
}

void ShardWriter::add_document(const std::vector<int32_t>& tokens, int64_t text_bytes) {
  OSDN_ASSERT(!tokens.empty(), "{}: a document without tokens", impl_->path);
  const int64_t first = impl_->position.tokens;
  const auto size = static_cast<int64_t>(tokens.size());
  if (first + size > kMaxShardTokens)
    throw UserError(
        "{}: expected at most {} tokens a shard, got {} (no document crosses shards: split longer ones)",
        impl_->path, kMaxShardTokens, first + size);
  const size_t width = impl_->token_bytes();
  const size_t begin = impl_->tokens.size();
  impl_->tokens.resize(begin + tokens.size() * width);
  char* target = impl_->tokens.data() + begin;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = tokens[i];
    if (token < 0 || token >= impl_->meta.vocab_size) {
      impl_->tokens.resize(begin);
      throw DataError("{}: token {} is {}, expected 0 to {} (the vocabulary has {} pieces)", impl_->path,
                      first + static_cast<int64_t>(i), token, impl_->meta.vocab_size - 1,
                      impl_->meta.vocab_size);
    }
    const auto id = static_cast<uint32_t>(token);
    for (size_t byte = 0; byte < width; ++byte) *target++ = static_cast<char>(id >> (8 * byte));
  }
  impl_->position.tokens += size;
  impl_->position.documents += 1;
  impl_->documents.push_back({.end = impl_->position.tokens, .text_bytes = text_bytes});
  if (impl_->tokens.size() + 16 * impl_->documents.size() >= shard_writer_detail::kBlockBytes) impl_->flush();
}

void ShardWriter::finish() {
  OSDN_ASSERT(impl_->position.tokens > 0, "{}: a shard without documents", impl_->path);
  impl_->flush();
  if (!impl_->is_finished()) {
    const uint64_t needed = static_cast<uint64_t>(impl_->position.tokens) * impl_->token_bytes() +
                            16 * static_cast<uint64_t>(impl_->position.documents) + (1 << 16);
    const uint64_t available = free_space_bytes(impl_->path);
    if (available < needed)
      throw EnvironmentError(
          "{}: the shard needs {} bytes, the file system has {} free (make room or choose another "
          "prepare.output)",
          impl_->path, needed, available);
    const std::string target = impl_->path + ".tmp";
    try {
      impl_->write_hdf5(target);
      File::open_for_appending(target).sync();
    } catch (...) {
      ::unlink(target.c_str());
      throw;
    }
    durable_rename(target, impl_->path);
  }
  if (!impl_->kept) remove_parts(impl_->path);
}

}  // namespace osdn::data
