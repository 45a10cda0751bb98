// The texts of one column of a Parquet file, through the reader program lib/osdn_parquet beside this one's
// folder (parquet_frames.h says why it is a program of its own).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/fs.h"
#include "data/detail/input_stream.h"

namespace osdn::data::detail {

/// Path of the reader program, ../lib/osdn_parquet from this program's folder; it may be absent.
std::string parquet_reader_path();

/// Throws EnvironmentError with the cure when this build has no reader. `input`: the file that asks for it.
void require_parquet_reader(const std::string& input);

class ParquetRows {
 public:
  /// A packed file is first unpacked into an unnamed file of the system's temporary folder, since Parquet is
  /// read from its end. Throws UserError when there is no text under `key`, DataError for a damaged file.
  ParquetRows(const std::string& path, Compression compression, const std::string& key);

  /// The next rows, about a megabyte: their texts one after the other, and the length of each, -1 for null.
  /// False at the end.
  bool next(std::string* texts, std::vector<int64_t>* lengths);
  int64_t num_rows() const { return num_rows_; }
  int64_t rows_read() const { return rows_read_; }

 private:
  void start(const File& file, const std::string& key);
  void receive(void* data, size_t size_bytes);
  std::string receive_text(uint64_t size_bytes);
  [[noreturn]] void report_end();

  /// The program that reads, and the pipe through which it sends; ended and closed by the destructor.
  struct Reader {
    Reader() = default;
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    ~Reader();
    int pipe = -1;
    pid_t process = -1;
  };

  std::string path_;
  Reader reader_;
  int64_t num_rows_ = 0;
  int64_t rows_read_ = 0;
  bool ended_ = false;
};

}  // namespace osdn::data::detail
