#include "base/hash.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "tests/support/catch.h"

// The vectors are those of the reference implementation (`xxhsum -H2`), so manifests can be checked with it.
TEST_CASE("digests are canonical XXH3-128", "[hash]") {
  CHECK(osdn::digest("").hex() == "99aa06d3014798d86001c324468d497f");
  CHECK(osdn::digest("abc").hex() == "06b05ab6733a618578af5f94892f3950");
  CHECK(osdn::digest("abc") != osdn::digest("abd"));
}

TEST_CASE("a digest in pieces equals the digest of the whole", "[hash]") {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31 + i / 7);
  for (const size_t piece : {1, 7, 240, 1024, 4999}) {
    osdn::StreamingDigest running;
    for (size_t i = 0; i < text.size(); i += piece)
      running.update(text.data() + i, std::min(piece, text.size() - i));
    CHECK(running.value() == osdn::digest(text));
  }
  osdn::StreamingDigest first;
  first.update("ab", 2);
  osdn::StreamingDigest moved = std::move(first);
  moved.update("c", 1);
  CHECK(moved.value() == osdn::digest("abc"));
}

TEST_CASE("a file's digest is that of its bytes", "[hash]") {
  const osdn::TemporaryDirectory directory;
  const std::string text(3'000'000, 'x');
  osdn::atomic_write(directory.path() + "/x", text);
  CHECK(osdn::digest_file(directory.path() + "/x") == osdn::digest(text));
  CHECK_THROWS_AS(osdn::digest_file(directory.path() + "/absent"), osdn::EnvironmentError);
}

TEST_CASE("hash64 depends on text and seed", "[hash]") {
  CHECK(osdn::hash64("layer.0", 1) == osdn::hash64("layer.0", 1));
  CHECK(osdn::hash64("layer.0", 1) != osdn::hash64("layer.0", 2));
  CHECK(osdn::hash64("layer.0", 1) != osdn::hash64("layer.1", 1));
}
