// Documents out of files, unpacked from .gz and .zst on the way. .txt: one file is one document; a byte order
// mark at its start is dropped, CRLF and lone CR become LF. .jsonl: one document a line, the text exactly as
// the JSON string says. .parquet: one document a row, the text exactly as it is stored. Or the built-in
// corpus. docs/howto/prepare_your_data.md has every rule.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/records.h"

namespace osdn::data {

enum class InputFormat { kText, kJsonLines, kParquet, kBuiltin };

struct InputFile {
  std::string path;
  InputFormat format = InputFormat::kText;
  int64_t size_bytes = 0;  // as it is stored, packed or not
  int64_t modified_ns = 0;
};

/// A stretch of input that one worker takes apart: a whole text file, or whole records of about a megabyte.
/// The stretches depend on the files and settings alone.
struct RawDocuments {
  InputFormat format = InputFormat::kText;
  std::string origin;            // for messages
  int64_t first_line = 1;        // of `bytes` in the file; kParquet: the first row
  std::string bytes;             // unpacked; kBuiltin: documents that end with NUL
  std::vector<int64_t> lengths;  // kParquet: of each row's text in `bytes`, -1 for null
  int64_t input_bytes = 0;       // of the files, as they are stored, that it stands for
  SkippedRecords skipped;        // records that the reader left out (too long)
};

/// The files that settings.input matches, each glob's matches sorted bytewise. Throws UserError for a glob
/// without matches, a file that is matched twice or a format that can't be read; EnvironmentError when this
/// build can't read Parquet and a file is.
std::vector<InputFile> find_inputs(const config::Prepare& settings);

/// Reads inputs one after the other. Memory is bounded by a few megabytes and the longest record
/// (settings.max_record_bytes), whatever the size of the files.
class InputReader {
 public:
  InputReader(const config::Prepare& settings, std::vector<InputFile> files, uint64_t builtin_seed);
  ~InputReader();
  InputReader(InputReader&&) noexcept;

  /// False at the end. Throws DataError for a damaged packed stream or Parquet file, UserError for a record
  /// that is too long unless settings.on_error says to skip it.
  bool next(RawDocuments* raw);
  int64_t total_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct SplitDocuments {
  std::vector<std::string> texts;
  SkippedRecords skipped;  // those of `raw` included
};

/// Throws UserError with file, line (row) and reason, or skips and counts the record where settings.on_error
/// says so: invalid UTF-8, broken JSON, no text under settings.text_key. `text_key`: a.b means field b of
/// object a, unless a field is named just so.
SplitDocuments split_documents(const RawDocuments& raw, const config::Prepare& settings);

/// Whether a document has no visible text: nothing but spaces, tabs, line ends and byte order marks.
bool is_empty_document(const std::string& text);

}  // namespace osdn::data
