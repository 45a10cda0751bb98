#include "base/hash.h"

#include <xxhash.h>

#include <vector>

#include "base/error.h"
#include "base/fs.h"

namespace osdn {
namespace {
Digest128 from_xxh(XXH128_hash_t hash) { return {.high = hash.high64, .low = hash.low64}; }
}  // namespace

struct StreamingDigest::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

std::string Digest128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Digest128 digest(const void* data, size_t size_bytes) { return from_xxh(XXH3_128bits(data, size_bytes)); }

uint64_t hash64(std::string_view text, uint64_t seed) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

StreamingDigest::StreamingDigest() : state_(std::make_unique<State>()) { XXH3_128bits_reset(state_->xxh); }
StreamingDigest::~StreamingDigest() = default;
StreamingDigest::StreamingDigest(StreamingDigest&&) noexcept = default;
StreamingDigest& StreamingDigest::operator=(StreamingDigest&&) noexcept = default;
void StreamingDigest::update(const void* data, size_t size_bytes) {
  XXH3_128bits_update(state_->xxh, data, size_bytes);
}
Digest128 StreamingDigest::value() const { return from_xxh(XXH3_128bits_digest(state_->xxh)); }

Digest128 digest_file(const std::string& path) {
  File file = File::open_for_reading(path);
  StreamingDigest digest;
  std::vector<char> block(1 << 20);
  while (const size_t size = file.read(block.data(), block.size())) digest.update(block.data(), size);
  return digest.value();
}

}  // namespace osdn
