#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string_view>

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

  void put(const char* name, const std::vector<int64_t>& values) {
    const Hdf5Id dataset = create_dataset(name, H5T_STD_I64LE, values.size());
    check(path_, "write a dataset",
          H5Dwrite(dataset.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  }

  void close() {
    check(path_, "flush the file", H5Fflush(file_.get(), H5F_SCOPE_LOCAL));
    file_.reset();
  }

 private:
  void put_attribute(const char* name, hid_t stored_type, hid_t memory_type, const void* value) {
    const Hdf5Id space(H5Screate(H5S_SCALAR), H5Sclose);
    const Hdf5Id attribute(
        check(path_, "create an attribute",
              H5Acreate2(file_.get(), name, stored_type, space.get(), H5P_DEFAULT, H5P_DEFAULT)),
        H5Aclose);
    check(path_, "write an attribute", H5Awrite(attribute.get(), memory_type, value));
  }

  std::string path_;
  Hdf5Id file_;
};

}  // namespace shard_writer_detail

struct ShardWriter::Impl {
  std::string path;
  std::string staged_path;  // of the raw tokens
  ShardMeta meta;
  bool wide = false;  // uint32
  std::optional<File> staged;
  StreamingDigest digest;
  std::vector<int64_t> document_offsets = {0};
  std::vector<int64_t> document_bytes;
  std::vector<char> block;  // tokens as they are stored, little-endian

  int64_t num_tokens() const { return document_offsets.back(); }
  size_t token_bytes() const { return wide ? 4 : 2; }
  void flush();
  void write_hdf5(const std::string& target);
  void copy_tokens(int64_t dataset, const std::string& target);
};

void ShardWriter::Impl::flush() {
  staged->write(block.data(), block.size());
  digest.update(block.data(), block.size());
  block.clear();
}

void ShardWriter::Impl::copy_tokens(int64_t dataset, const std::string& target) {
  const hid_t memory_type = wide ? H5T_STD_U32LE : H5T_STD_U16LE;
  const detail::Hdf5Id file_space(H5Dget_space(dataset), H5Sclose);
  File source = File::open_for_reading(staged_path);
  block.resize(shard_writer_detail::kBlockBytes);
  hsize_t position = 0;
  while (const size_t size = source.read(block.data(), block.size())) {
    const hsize_t count = size / token_bytes();
    const detail::Hdf5Id memory_space(H5Screate_simple(1, &count, nullptr), H5Sclose);
    H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, &position, nullptr, &count, nullptr);
    shard_writer_detail::check(
        target, "write the tokens",
        H5Dwrite(dataset, memory_type, memory_space.get(), file_space.get(), H5P_DEFAULT, block.data()));
    position += count;
  }
  OSDN_ASSERT(static_cast<int64_t>(position) == num_tokens(), "{}: {} of {} tokens staged", target, position,
              num_tokens());
}

void ShardWriter::Impl::write_hdf5(const std::string& target) {
  const detail::Hdf5Guard guard;
  shard_writer_detail::Hdf5File file(target);
  file.put("format", std::string("osdn-shard"));
  file.put("format_version", int64_t{1});
  file.put("vocab_size", meta.vocab_size);
  file.put("tokenizer_digest", meta.tokenizer_digest);
  file.put("sources", shard_writer_detail::join_sources(meta.source_names));
  file.put("num_tokens", num_tokens());
  file.put("num_documents", static_cast<int64_t>(document_bytes.size()));
  file.put("tokens_digest", digest.value().hex());
  file.put("document_offsets", document_offsets);
  file.put("document_bytes", document_bytes);
  {
    const detail::Hdf5Id tokens = file.create_dataset("tokens", wide ? H5T_STD_U32LE : H5T_STD_U16LE,
                                                      static_cast<size_t>(num_tokens()));
    copy_tokens(tokens.get(), target);
  }
  file.close();
}

ShardWriter::ShardWriter(const std::string& path, ShardMeta meta) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->staged_path = fmt::format("{}.tokens-{}", path, ::getpid());
  impl_->wide = meta.vocab_size > 65536;
  impl_->meta = std::move(meta);
  impl_->staged = File::create(impl_->staged_path);
}

ShardWriter::~ShardWriter() { ::unlink(impl_->staged_path.c_str()); }

int64_t ShardWriter::num_tokens() const { return impl_->num_tokens(); }
int64_t ShardWriter::num_documents() const { return static_cast<int64_t>(impl_->document_bytes.size()); }

void ShardWriter::add_document(const std::vector<int32_t>& tokens, int64_t text_bytes) {
  OSDN_ASSERT(!tokens.empty(), "{}: a document without tokens", impl_->path);
  const int64_t first = impl_->num_tokens();
  const auto size = static_cast<int64_t>(tokens.size());
  if (first + size > kMaxShardTokens)
    throw UserError(
        "{}: expected at most {} tokens a shard, got {} (no document crosses shards: split longer ones)",
        impl_->path, kMaxShardTokens, first + size);
  for (int64_t i = 0; i < size; ++i) {
    const int32_t token = tokens[static_cast<size_t>(i)];
    if (token < 0 || token >= impl_->meta.vocab_size)
      throw DataError("{}: token {} is {}, expected 0 to {} (the vocabulary has {} pieces)", impl_->path,
                      first + i, token, impl_->meta.vocab_size - 1, impl_->meta.vocab_size);
    const auto id = static_cast<uint32_t>(token);
    for (size_t byte = 0; byte < impl_->token_bytes(); ++byte)
      impl_->block.push_back(static_cast<char>(id >> (8 * byte)));
  }
  if (impl_->block.size() >= shard_writer_detail::kBlockBytes) impl_->flush();
  impl_->document_offsets.push_back(first + size);
  impl_->document_bytes.push_back(text_bytes);
}

void ShardWriter::finish() {
  OSDN_ASSERT(impl_->num_tokens() > 0, "{}: a shard without documents", impl_->path);
  impl_->flush();
  const uint64_t needed = static_cast<uint64_t>(impl_->num_tokens()) * impl_->token_bytes() +
                          16 * impl_->document_bytes.size() + (1 << 16);
  const uint64_t available = free_space_bytes(impl_->path);
  if (available < needed)
    throw EnvironmentError(
        "{}: the shard needs {} bytes, the file system has {} free (make room or choose another "
        "prepare.output)",
        impl_->path, needed, available);
  const std::string target = fmt::format("{}.tmp-{}", impl_->path, ::getpid());
  try {
    impl_->write_hdf5(target);
    File::open_for_appending(target).sync();
  } catch (...) {
    ::unlink(target.c_str());
    throw;
  }
  durable_rename(target, impl_->path);
  ::unlink(impl_->staged_path.c_str());
}

}  // namespace osdn::data
