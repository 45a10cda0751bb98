// XXH3-128 digests: of files in manifests, of tokens in shards, of documents for the validation split.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace osdn {

struct Digest128 {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Digest128&) const = default;
  /// 32 lower-case hexadecimal digits, high half first (the canonical XXH3 form).
  std::string hex() const;
};

Digest128 digest(const void* data, size_t size_bytes);
inline Digest128 digest(std::string_view text) { return digest(text.data(), text.size()); }

/// 64-bit hash of a string with a seed; used to key counter-based random numbers by name.
uint64_t hash64(std::string_view text, uint64_t seed);

/// Digest of data that arrives in pieces.
class StreamingDigest {
 public:
  StreamingDigest();
  ~StreamingDigest();
  StreamingDigest(StreamingDigest&&) noexcept;
  StreamingDigest& operator=(StreamingDigest&&) noexcept;
  void update(const void* data, size_t size_bytes);
  Digest128 value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Digest of a file's content, read in blocks. Throws EnvironmentError naming the path when it can't be read.
Digest128 digest_file(const std::string& path);

}  // namespace osdn
