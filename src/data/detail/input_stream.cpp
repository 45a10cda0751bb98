#include "data/detail/input_stream.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <climits>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fs.h"

namespace osdn::data::detail {
namespace input_stream_detail {

constexpr size_t kBufferBytes = 256 << 10;
constexpr int kGzipOnly = 16 + MAX_WBITS;  // windowBits of inflateInit2: a gzip header, the largest window
constexpr int kLargestZstdWindow = 31;     // zstd --long=31
constexpr int kUsualZstdWindow = 27;       // what every decoder takes
constexpr std::string_view kGzipMagic = "\x1F\x8B";
constexpr std::string_view kZstdMagic = "\x28\xB5\x2F\xFD";

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

/// The window that a zstd file of this size may ask for, as a power of two: a small file that asks for
/// gigabytes of memory is damaged or hostile.
int zstd_window(uint64_t file_bytes) {
  int window = kUsualZstdWindow;
  while (window < kLargestZstdWindow && file_bytes >> (window - 10) != 0) ++window;
  return window;
}

/// The file and the stretch of it that waits to be unpacked.
class PackedFile {
 public:
  PackedFile(const std::string& path, const char* kind)
      : file_(File::open_for_reading(path)), kind_(kind), buffer_(kBufferBytes) {}

  /// False at the end of the file.
  bool refill() {
    size_ = file_.read(buffer_.data(), buffer_.size());
    read_ += static_cast<int64_t>(size_);
    position_ = 0;
    return size_ > 0;
  }
  uint64_t file_bytes() const { return file_.size_bytes(); }
  const char* data() const { return buffer_.data() + position_; }
  size_t available() const { return size_ - position_; }
  void take(size_t bytes) { position_ += bytes; }
  int64_t consumed_bytes() const { return read_ - static_cast<int64_t>(available()); }

  [[noreturn]] void damaged(const std::string& reason, int64_t unpacked) const {
    throw DataError(
        "{}: damaged {} stream at byte {} of {} (after {} unpacked bytes): {} (fetch or pack the file again)",
        file_.path(), kind_, consumed_bytes(), file_.size_bytes(), unpacked, reason);
  }

 private:
  File file_;
  const char* kind_;
  std::vector<char> buffer_;
  size_t position_ = 0;
  size_t size_ = 0;
  int64_t read_ = 0;
};

class PlainStream : public InputStream {
 public:
  explicit PlainStream(const std::string& path) : file_(File::open_for_reading(path)) {}
  size_t read(char* buffer, size_t size_bytes) override {
    const size_t got = file_.read(buffer, size_bytes);
    if (consumed_ == 0) refuse_packed(std::string_view(buffer, got));
    consumed_ += static_cast<int64_t>(got);
    return got;
  }
  int64_t consumed_bytes() const override { return consumed_; }

 private:
  // Neither can begin a text: their second bytes are no UTF-8.
  void refuse_packed(std::string_view start) const {
    const bool gzip = start.substr(0, kGzipMagic.size()) == kGzipMagic;
    if (gzip || start.substr(0, kZstdMagic.size()) == kZstdMagic)
      throw DataError("{}: expected text, found a {} stream (let the file's name end in {})", file_.path(),
                      gzip ? "gzip" : "zstd", gzip ? ".gz" : ".zst");
  }

  File file_;
  int64_t consumed_ = 0;
};

class GzipStream : public InputStream {
 public:
  explicit GzipStream(const std::string& path) : file_(path, "gzip") {
    if (inflateInit2(&stream_, kGzipOnly) != Z_OK)
      throw EnvironmentError("{}: zlib cannot start: out of memory", path);
  }
  ~GzipStream() override { inflateEnd(&stream_); }

  size_t read(char* buffer, size_t size_bytes) override {
    size_t done = 0;
    while (done < size_bytes && !ended_) {
      if (file_.available() == 0 && !file_.refill()) {
        if (inside_member_ || !any_member_)
          file_.damaged(inside_member_ ? "it is cut off" : "it is empty", unpacked_);
        ended_ = true;
      } else if (inside_member_) {
        done += inflate_some(buffer + done, size_bytes - done);
      } else {
        begin_member();
      }
    }
    return done;
  }
  int64_t consumed_bytes() const override { return file_.consumed_bytes(); }

 private:
  /// Members may follow each other, and zeros may fill the end (tapes, block devices), as gzip accepts them.
  void begin_member() {
    if (any_member_ && *file_.data() == '\0') {
      file_.take(1);
      return;
    }
    if (*file_.data() != kGzipMagic[0])
      file_.damaged(any_member_ ? "expected a further gzip member or the end"
                                : "expected a gzip header, found something else",
                    unpacked_);
    inflateReset2(&stream_, kGzipOnly);
    inside_member_ = true;
    any_member_ = true;
  }

  size_t inflate_some(char* buffer, size_t size_bytes) {
    const size_t room = std::min<size_t>(size_bytes, UINT_MAX);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(file_.data()));
    stream_.avail_in = static_cast<uInt>(file_.available());
    stream_.next_out = reinterpret_cast<Bytef*>(buffer);
    stream_.avail_out = static_cast<uInt>(room);
    const int status = inflate(&stream_, Z_NO_FLUSH);
    file_.take(file_.available() - stream_.avail_in);
    const size_t got = room - stream_.avail_out;
    unpacked_ += static_cast<int64_t>(got);
    if (status == Z_STREAM_END) {
      inside_member_ = false;
    } else if (status == Z_MEM_ERROR) {
      throw EnvironmentError("zlib: out of memory");
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      file_.damaged(stream_.msg != nullptr ? stream_.msg : "it needs a dictionary", unpacked_);
    }
    return got;
  }

  PackedFile file_;
  z_stream stream_{};
  bool inside_member_ = false;
  bool any_member_ = false;
  bool ended_ = false;
  int64_t unpacked_ = 0;
};

class ZstdStream : public InputStream {
 public:
  explicit ZstdStream(const std::string& path)
      : file_(path, "zstd"), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
    if (stream_ == nullptr) throw EnvironmentError("{}: zstd cannot start: out of memory", path);
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, zstd_window(file_.file_bytes()));
  }

  size_t read(char* buffer, size_t size_bytes) override {
    ZSTD_outBuffer out{buffer, size_bytes, 0};
    while (out.pos < size_bytes && !ended_) {
      const bool at_end = file_.available() == 0 && !file_.refill();
      ZSTD_inBuffer in{file_.data(), file_.available(), 0};
      const size_t before = out.pos;
      // At the end of the file too: the library may still hold unpacked bytes.
      const size_t status = at_end && !inside_frame_ ? 0 : ZSTD_decompressStream(stream_.get(), &out, &in);
      file_.take(in.pos);
      unpacked_ += static_cast<int64_t>(out.pos - before);
      if (ZSTD_isError(status) != 0) file_.damaged(ZSTD_getErrorName(status), unpacked_);
      inside_frame_ = status != 0;
      if (at_end && out.pos == before) {
        if (inside_frame_) file_.damaged("it is cut off", unpacked_);
        if (file_.consumed_bytes() == 0) file_.damaged("it is empty", unpacked_);
        ended_ = true;
      }
    }
    return out.pos;
  }
  int64_t consumed_bytes() const override { return file_.consumed_bytes(); }

 private:
  PackedFile file_;
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  bool inside_frame_ = false;
  bool ended_ = false;
  int64_t unpacked_ = 0;
};

}  // namespace input_stream_detail

Compression compression_of(const std::string& path) {
  if (input_stream_detail::ends_with(path, ".gz")) return Compression::kGzip;
  if (input_stream_detail::ends_with(path, ".zst")) return Compression::kZstd;
  return Compression::kNone;
}

std::unique_ptr<InputStream> open_input(const std::string& path, Compression compression) {
  switch (compression) {
    case Compression::kGzip:
      return std::make_unique<input_stream_detail::GzipStream>(path);
    case Compression::kZstd:
      return std::make_unique<input_stream_detail::ZstdStream>(path);
    case Compression::kNone:
      break;
  }
  return std::make_unique<input_stream_detail::PlainStream>(path);
}

}  // namespace osdn::data::detail
