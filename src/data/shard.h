// Token shards: HDF5 files of whole documents (docs/formats/shard.md), complete or absent. The library is
// used only to write a file; reading goes straight to the bytes, since a shard may be damaged or hostile.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace osdn::data {

constexpr int64_t kMaxShardTokens = int64_t{1} << 28;

/// What every document of a shard has in common.
struct ShardMeta {
  std::string tokenizer_digest;
  int64_t vocab_size = 0;                 // decides the stored type: uint16 up to 65,536, else uint32
  std::vector<std::string> source_names;  // where the text came from
};

/// How far a shard has come that is not finished.
struct ShardPosition {
  int64_t tokens = 0;
  int64_t documents = 0;
};

/// Writes one shard. Tokens and the table of documents wait in two files beside the final one, so memory does
/// not grow with them, and a process that dies can be followed by one that continues.
class ShardWriter {
 public:
  ShardWriter(const std::string& path, ShardMeta meta);
  /// Continues after `position`, which sync returned to an earlier process with the same path and meta.
  /// Throws DataError when the files do not reach it.
  ShardWriter(const std::string& path, ShardMeta meta, ShardPosition position);
  ~ShardWriter();  // without finish or sync: leaves nothing behind
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// `tokens`: at least one, each below the vocabulary size (DataError otherwise). `text_bytes`: of the text
  /// behind them.
  void add_document(const std::vector<int32_t>& tokens, int64_t text_bytes);
  ShardPosition position() const;
  /// Puts all that was added on the medium. From then on the two files stay until remove_parts, whatever
  /// happens.
  void sync();
  /// Makes the file under a temporary name, fsyncs and renames it; a writer that continues keeps the file
  /// that an earlier process made of just these tokens. Throws EnvironmentError without space.
  void finish();

  /// Removes what sync left beside the shard `path`.
  static void remove_parts(const std::string& path);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A shard opened for reading. All methods are const and thread-safe.
class ShardReader {
 public:
  /// Checks that the file is a complete shard: type, rank, attributes, offsets, length. Throws DataError or
  /// EnvironmentError naming the file and what was found in it. Any integer type and byte order is read,
  /// chunked and compressed datasets too (more slowly). No byte of the file is trusted.
  explicit ShardReader(const std::string& path);
  ~ShardReader();
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  /// `out`: [count] ids, each checked against the vocabulary (DataError naming file and position).
  void read(int64_t position, int64_t count, int32_t* out) const;
  /// Reads every token and compares the digest: DataError when a bit has changed.
  void verify() const;

  const std::string& path() const;
  int64_t num_tokens() const;
  int64_t num_documents() const;
  int64_t text_bytes() const;
  int64_t vocab_size() const;
  const std::string& tokenizer_digest() const;
  const std::string& tokens_digest() const;
  const std::vector<std::string>& source_names() const;
  const std::vector<int64_t>& document_offsets()
      const;                                           // [documents + 1] first 0, last num_tokens, increasing
  const std::vector<int64_t>& document_bytes() const;  // [documents]
  std::string stored_type() const;                     // e.g. "uint16, little-endian"

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace osdn::data
