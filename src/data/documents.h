// Documents out of files. .txt: one file is one document; a byte order mark at its start is dropped, CRLF and
// lone CR become LF. .jsonl: one document a line, the text exactly as the JSON string says. Or the built-in
// corpus.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"

namespace osdn::data {

enum class InputFormat { kText, kJsonLines, kBuiltin };

struct InputFile {
  std::string path;
  InputFormat format = InputFormat::kText;
  int64_t size_bytes = 0;
  int64_t modified_ns = 0;
};

/// A stretch of input that one worker takes apart: a whole text file, or whole lines of about a megabyte.
struct RawDocuments {
  InputFormat format = InputFormat::kText;
  std::string origin;       // for messages
  int64_t first_line = 1;   // of `bytes` in the file
  std::string bytes;        // kBuiltin: documents that end with NUL
  int64_t input_bytes = 0;  // of the files that it stands for
};

/// The files that settings.input matches, each glob's matches sorted bytewise. Throws UserError for a glob
/// without matches or a format that can't be read.
std::vector<InputFile> find_inputs(const config::Prepare& settings);

/// Reads inputs one after the other, bounded in memory by the longest line or text file.
class InputReader {
 public:
  InputReader(const config::Prepare& settings, std::vector<InputFile> files, uint64_t builtin_seed);
  ~InputReader();
  InputReader(InputReader&&) noexcept;

  /// False at the end.
  bool next(RawDocuments* raw);
  int64_t total_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Throws UserError with file, line and reason: invalid UTF-8, broken JSON, no text under the key.
/// `text_key`: a.b means field b of object a, unless a field is named just so.
std::vector<std::string> split_documents(const RawDocuments& raw, const std::string& text_key);

/// Whether a document has no visible text: nothing but spaces, tabs, line ends and byte order marks.
bool is_empty_document(const std::string& text);

}  // namespace osdn::data
