// Bytes of an input file, unpacked on the way: plain, gzip (members one after the other) or zstd (frames one
// after the other). Memory is a few buffers, whatever the size of the file; a zstd frame made with a long
// window takes that window, at most 128 MiB or, in files above 128 KiB, about a thousand times the file and 2
// GiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace osdn::data::detail {

enum class Compression { kNone, kGzip, kZstd };

/// By the ending of the name: .gz, .zst, or none of them.
Compression compression_of(const std::string& path);

class InputStream {
 public:
  virtual ~InputStream() = default;
  InputStream() = default;
  InputStream(const InputStream&) = delete;
  InputStream& operator=(const InputStream&) = delete;

  /// Fills the buffer unless the data end before. Throws DataError with the position in the file when a
  /// packed stream is damaged or cut off.
  virtual size_t read(char* buffer, size_t size_bytes) = 0;
  /// Bytes of the file that have been taken so far.
  virtual int64_t consumed_bytes() const = 0;
};

/// Throws EnvironmentError when the file can't be opened, DataError when its first bytes are those of another
/// kind of file than its name says.
std::unique_ptr<InputStream> open_input(const std::string& path, Compression compression);

}  // namespace osdn::data::detail
