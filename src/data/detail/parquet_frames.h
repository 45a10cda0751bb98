// What the Parquet reader, a program of its own, tells the process that started it through a pipe: frames of
// a header and a payload, in the byte order of the machine. Arrow lives in that program alone: it brings its
// own protobuf and OpenSSL, which must not meet those of the other libraries, it is larger than the rest of
// the program together, and a damaged file can at worst end it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace osdn::data::detail {

constexpr int kParquetFileDescriptor = 3;  // where the reader finds the file; it writes frames to its stdout
constexpr int64_t kParquetBatchBytes = 1 << 20;  // a batch ends with the row that reaches it
constexpr int64_t kParquetBatchRows = 1 << 16;

enum class FrameKind : uint32_t {
  kOpened,        // payload: int64 number of rows
  kRows,          // payload: int64 lengths, one a row, then the texts one after the other; size_rows of them
  kEnd,           // every row was sent
  kUserError,     // payload: message; the file is fine but not what was asked for
  kDamagedError,  // payload: message
};

struct FrameHeader {
  FrameKind kind = FrameKind::kEnd;
  uint32_t num_rows = 0;    // of kRows
  uint64_t size_bytes = 0;  // of the payload
};

constexpr int64_t kNullRow = -1;  // in place of a length

}  // namespace osdn::data::detail
