#include "data/documents.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/utf8.h"
#include "data/builtin_corpus.h"
#include "data/detail/input_stream.h"
#include "data/detail/jsonl.h"
#include "data/detail/parquet_rows.h"

namespace osdn::data {
namespace documents_detail {

constexpr size_t kBlockBytes = 1 << 20;
constexpr size_t kNone = std::string_view::npos;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

InputFormat format_of(const std::string& path, const std::string& setting) {
  if (setting == "txt") return InputFormat::kText;
  if (setting == "jsonl") return InputFormat::kJsonLines;
  if (setting == "parquet") return InputFormat::kParquet;
  if (setting != "auto")
    throw UserError("prepare.format: expected auto, txt, jsonl or parquet, got \"{}\"", setting);
  std::string_view name = path;
  if (ends_with(name, ".gz")) name.remove_suffix(3);
  if (ends_with(name, ".zst")) name.remove_suffix(4);
  if (ends_with(name, ".txt")) return InputFormat::kText;
  if (ends_with(name, ".jsonl") || ends_with(name, ".ndjson")) return InputFormat::kJsonLines;
  if (ends_with(name, ".parquet")) return InputFormat::kParquet;
  throw UserError(
      "prepare.input: {}: expected a name ending in .txt, .jsonl or .parquet, each alone or with .gz or .zst "
      "(set "
      "prepare.format for other names, e.g. jsonl for .json files with one record a line)",
      path);
}

std::string too_long(const std::string& place, int64_t limit) {
  return fmt::format(
      "{}: expected records of at most {} bytes, this one is longer (raise prepare.max_record_bytes, or "
      "split the record)",
      place, limit);
}

std::string with_unix_line_ends(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const size_t end = std::min(text.find('\r'), text.size());
    result += text.substr(0, end);
    if (end == text.size()) break;
    result += '\n';
    text.remove_prefix(end + 1);
    if (!text.empty() && text.front() == '\n') text.remove_prefix(1);
  }
  return result;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == kNone; }

/// Length of the first line with its end: LF, CRLF, or a CR, which can't stand inside a JSON record's text.
/// `content`: without its end. The whole of `text` when it has no line end.
size_t line_length(std::string_view text, std::string_view* content) {
  const size_t newline = std::min(text.find('\n'), text.size());
  const size_t carriage = text.substr(0, newline).find('\r');
  const size_t end = std::min(newline, carriage);
  *content = text.substr(0, end);
  if (end == text.size()) return end;
  return carriage != kNone && carriage + 1 == newline && newline < text.size() ? newline + 1 : end + 1;
}

int64_t count_line_ends(std::string_view text) {
  int64_t count = std::count(text.begin(), text.end(), '\n');
  for (size_t i = text.find('\r'); i != kNone; i = text.find('\r', i + 1))
    count += i + 1 == text.size() || text[i + 1] != '\n' ? 1 : 0;
  return count;
}

/// Right behind the last line end at or after `from`. A CR that is the last byte may be half of a CRLF.
size_t after_last_line_end(std::string_view text, size_t from) {
  const std::string_view part = text.substr(from);
  if (const size_t newline = part.rfind('\n'); newline != kNone) return from + newline + 1;
  if (part.size() < 2) return kNone;
  const size_t carriage = part.rfind('\r', part.size() - 2);
  return carriage == kNone ? kNone : from + carriage + 1;
}

std::string text_of_file(const RawDocuments& raw, std::string_view bytes) {
  const size_t invalid = first_invalid_utf8(bytes);
  if (invalid == kNone) return with_unix_line_ends(bytes);
  const std::string_view before = bytes.substr(0, invalid);
  const size_t start = before.find_last_of("\r\n");
  const size_t line_start = start == kNone ? 0 : start + 1;
  throw detail::RecordError(
      RecordFault::kInvalidUtf8,
      fmt::format("{}:{}: {}", raw.origin, 1 + count_line_ends(before),
                  detail::utf8_problem(bytes.substr(line_start), invalid - line_start, "line")));
}

std::string text_of_row(std::string_view text, const std::string& place) {
  const size_t invalid = first_invalid_utf8(text);
  if (invalid != kNone)
    throw detail::RecordError(RecordFault::kInvalidUtf8,
                              fmt::format("{}: {}", place, detail::utf8_problem(text, invalid, "text")));
  return std::string(text);
}

/// Collects what becomes of each record.
class Splitter {
 public:
  Splitter(const RawDocuments& raw, const config::Prepare& settings) : settings_(settings) {
    result_.skipped = raw.skipped;
  }

  /// `text()` gives the document or throws RecordError.
  template <typename Text>
  void add(const Text& text) {
    try {
      result_.texts.push_back(text());
    } catch (const detail::RecordError& failure) {
      if (settings_.on_error != "skip")
        throw UserError("{}; or leave such records out, counted, with --on-error skip", failure.what());
      result_.skipped.add(failure.fault(), failure.what());
    }
  }
  void check_length(size_t size_bytes, const std::string& place) const {
    if (static_cast<int64_t>(size_bytes) > settings_.max_record_bytes)
      throw detail::RecordError(RecordFault::kTooLong, too_long(place, settings_.max_record_bytes));
  }
  SplitDocuments take() { return std::move(result_); }

 private:
  const config::Prepare& settings_;
  SplitDocuments result_;
};

void split_lines(const RawDocuments& raw, std::string_view bytes, const std::string& key,
                 Splitter* splitter) {
  for (int64_t line = raw.first_line; !bytes.empty(); ++line) {
    std::string_view record;
    const size_t length = line_length(bytes, &record);
    bytes.remove_prefix(length);
    if (is_blank(record)) continue;
    splitter->add([&] {
      const std::string place = fmt::format("{}:{}", raw.origin, line);
      splitter->check_length(record.size(), place);
      return detail::text_of_json_line(record, key, place, record.size() == length);
    });
  }
}

void split_rows(const RawDocuments& raw, const std::string& key, Splitter* splitter) {
  std::string_view bytes = raw.bytes;
  int64_t row = raw.first_line;
  for (const int64_t length : raw.lengths) {
    const std::string_view text = bytes.substr(0, static_cast<size_t>(std::max<int64_t>(length, 0)));
    bytes.remove_prefix(text.size());
    splitter->add([&] {
      const std::string place = fmt::format("{}: row {}", raw.origin, row);
      if (length < 0)
        throw detail::RecordError(RecordFault::kNull,
                                  fmt::format("{}: expected text under \"{}\", found null", place, key));
      splitter->check_length(text.size(), place);
      return text_of_row(text, place);
    });
    ++row;
  }
}

}  // namespace documents_detail

std::vector<InputFile> find_inputs(const config::Prepare& settings) {
  std::vector<InputFile> files;
  std::set<std::string> seen;
  for (const std::string& glob : settings.input) {
    const std::vector<std::string> paths = glob_paths(glob);
    if (paths.empty())
      throw UserError("prepare.input: nothing matches {} (that is {})", glob,
                      std::filesystem::absolute(glob).lexically_normal().string());
    for (const std::string& path : paths) {
      struct stat status {};
      if (::stat(path.c_str(), &status) != 0)
        throw EnvironmentError("{}: cannot look at the file: {}", path, std::strerror(errno));
      if (S_ISDIR(status.st_mode))
        throw UserError("prepare.input: {}: expected files, found a directory (use '{}/*.jsonl' or the like)",
                        path, path);
      if (!S_ISREG(status.st_mode))
        throw UserError(
            "prepare.input: {}: expected a file, which can be read twice, found a pipe or a device", path);
      if (!seen.insert(std::filesystem::absolute(path).lexically_normal().string()).second)
        throw UserError(
            "prepare.input: {}: matched twice, the second time by {} (a file is read once; weights are set "
            "in "
            "data.train)",
            path, glob);
      files.push_back(
          {.path = path,
           .format = documents_detail::format_of(path, settings.format),
           .size_bytes = status.st_size,
           .modified_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec});
      if (files.back().format == InputFormat::kParquet) detail::require_parquet_reader(path);
    }
  }
  return files;
}

struct InputReader::Impl {
  config::Prepare settings;
  std::vector<InputFile> files;
  uint64_t builtin_seed = 0;
  size_t position = 0;  // of the file that is read
  // The file that is open: one of the two.
  std::unique_ptr<detail::InputStream> stream;
  std::unique_ptr<detail::ParquetRows> rows;
  int64_t reported_bytes = 0;  // of the file, in input_bytes so far
  std::string rest;            // the begun last line of a block
  int64_t next_line = 1;
  int64_t next_document = 0;  // of the built-in corpus
  int64_t builtin_bytes = 0;

  bool next_builtin(RawDocuments* raw);
  bool read_text(RawDocuments* raw);
  bool read_lines(RawDocuments* raw);
  bool read_rows(RawDocuments* raw);
  bool skip_long_line(RawDocuments* raw);
  bool fill(std::string* bytes) const;
  void report(RawDocuments* raw, int64_t file_bytes) {
    raw->input_bytes = file_bytes - std::exchange(reported_bytes, file_bytes);
  }
  void close() {
    stream.reset();
    rows.reset();
    reported_bytes = 0;
    ++position;
  }
};

bool InputReader::Impl::next_builtin(RawDocuments* raw) {
  const int64_t total = settings.builtin_megabytes * 1'000'000;
  raw->format = InputFormat::kBuiltin;
  raw->origin = "the built-in corpus";
  while (builtin_bytes < total && raw->bytes.size() < documents_detail::kBlockBytes / 4) {
    const std::string document = builtin_document(builtin_seed, next_document++);
    builtin_bytes += static_cast<int64_t>(document.size());
    raw->input_bytes += static_cast<int64_t>(document.size());
    raw->bytes += document;
    raw->bytes += '\0';
  }
  return !raw->bytes.empty();
}

/// Appends a block. False when the file ended with it.
bool InputReader::Impl::fill(std::string* bytes) const {
  const size_t before = bytes->size();
  bytes->resize(before + documents_detail::kBlockBytes);
  const size_t got = stream->read(bytes->data() + before, documents_detail::kBlockBytes);
  bytes->resize(before + got);
  return got == documents_detail::kBlockBytes;
}

bool InputReader::Impl::read_text(RawDocuments* raw) {
  const InputFile& input = files[position];
  stream = detail::open_input(input.path, detail::compression_of(input.path));
  while (fill(&raw->bytes) && static_cast<int64_t>(raw->bytes.size()) <= settings.max_record_bytes) continue;
  if (static_cast<int64_t>(raw->bytes.size()) > settings.max_record_bytes) {
    const std::string message = documents_detail::too_long(input.path, settings.max_record_bytes) +
                                ": a .txt file is one document; write its documents as .jsonl, one a line";
    if (settings.on_error != "skip") throw UserError("{}", message);
    raw->bytes.clear();
    raw->skipped.add(RecordFault::kTooLong, message);
  }
  report(raw, input.size_bytes);
  close();
  return true;
}

/// Gives up the line that fills raw->bytes and keeps what follows it. False when the file ended before.
bool InputReader::Impl::skip_long_line(RawDocuments* raw) {
  const std::string message = documents_detail::too_long(
      fmt::format("{}:{}", files[position].path, next_line), settings.max_record_bytes);
  if (settings.on_error != "skip") throw UserError("{}", message);
  raw->skipped.add(RecordFault::kTooLong, message);
  std::string block;
  for (bool more = true; more;) {
    block.clear();
    more = fill(&block);
    size_t end = block.find('\n');
    if (end == std::string::npos) end = block.find('\r');
    if (end == std::string::npos) continue;
    raw->bytes = block.substr(end + 1);
    raw->first_line = ++next_line;
    return more;
  }
  raw->bytes.clear();
  return false;
}

/// Whole lines of about one block. False when the file ended before any.
bool InputReader::Impl::read_lines(RawDocuments* raw) {
  const InputFile& input = files[position];
  if (!stream) {
    stream = detail::open_input(input.path, detail::compression_of(input.path));
    rest.clear();
    next_line = 1;
  }
  raw->bytes = std::exchange(rest, {});
  raw->first_line = next_line;
  bool more = true;
  size_t cut = documents_detail::kNone;
  for (size_t searched = 0; more && cut == documents_detail::kNone;) {
    more = fill(&raw->bytes);
    cut = documents_detail::after_last_line_end(raw->bytes, searched);
    searched = raw->bytes.empty() ? 0 : raw->bytes.size() - 1;  // its last byte may become half of a CRLF
    if (cut == documents_detail::kNone &&
        static_cast<int64_t>(raw->bytes.size()) > settings.max_record_bytes) {
      more = more && skip_long_line(raw);
      cut = documents_detail::after_last_line_end(raw->bytes, 0);
      searched = 0;
    }
  }
  if (more) {
    rest = raw->bytes.substr(cut);
    raw->bytes.resize(cut);
  }
  next_line += documents_detail::count_line_ends(raw->bytes);
  report(raw, more ? stream->consumed_bytes() : input.size_bytes);
  if (!more) close();
  return !raw->bytes.empty() || raw->skipped.total() > 0;
}

bool InputReader::Impl::read_rows(RawDocuments* raw) {
  const InputFile& input = files[position];
  if (!rows)
    rows = std::make_unique<detail::ParquetRows>(input.path, detail::compression_of(input.path),
                                                 settings.text_key);
  raw->first_line = rows->rows_read() + 1;
  const bool any = rows->next(&raw->bytes, &raw->lengths);
  // The share of the rows stands for the share of the file.
  const double share = rows->num_rows() == 0
                           ? 1.0
                           : static_cast<double>(rows->rows_read()) / static_cast<double>(rows->num_rows());
  report(raw, static_cast<int64_t>(share * static_cast<double>(input.size_bytes)));
  if (!any) close();
  return any;
}

InputReader::InputReader(const config::Prepare& settings, std::vector<InputFile> files, uint64_t builtin_seed)
    : impl_(std::make_unique<Impl>()) {
  impl_->settings = settings;
  impl_->files = std::move(files);
  impl_->builtin_seed = builtin_seed;
}
InputReader::~InputReader() = default;
InputReader::InputReader(InputReader&&) noexcept = default;

bool InputReader::next(RawDocuments* raw) {
  *raw = {};
  if (impl_->settings.builtin) return impl_->next_builtin(raw);
  while (impl_->position < impl_->files.size()) {
    const InputFile& input = impl_->files[impl_->position];
    *raw = {};
    raw->format = input.format;
    raw->origin = input.path;
    const bool any = input.format == InputFormat::kText        ? impl_->read_text(raw)
                     : input.format == InputFormat::kJsonLines ? impl_->read_lines(raw)
                                                               : impl_->read_rows(raw);
    if (any) return true;
  }
  return false;
}

int64_t InputReader::total_bytes() const {
  if (impl_->settings.builtin) return impl_->settings.builtin_megabytes * 1'000'000;
  int64_t bytes = 0;
  for (const InputFile& input : impl_->files) bytes += input.size_bytes;
  return bytes;
}

SplitDocuments split_documents(const RawDocuments& raw, const config::Prepare& settings) {
  documents_detail::Splitter splitter(raw, settings);
  std::string_view bytes = raw.bytes;
  const bool marked =
      bytes.substr(0, documents_detail::kByteOrderMark.size()) == documents_detail::kByteOrderMark;
  switch (raw.format) {
    case InputFormat::kBuiltin:
      while (!bytes.empty()) {
        const size_t end = bytes.find('\0');
        splitter.add([&] { return std::string(bytes.substr(0, end)); });
        bytes.remove_prefix(end + 1);
      }
      break;
    case InputFormat::kParquet:
      documents_detail::split_rows(raw, settings.text_key, &splitter);
      break;
    case InputFormat::kText:
      if (marked) bytes.remove_prefix(documents_detail::kByteOrderMark.size());
      if (raw.skipped.total() == 0) splitter.add([&] { return documents_detail::text_of_file(raw, bytes); });
      break;
    case InputFormat::kJsonLines:
      if (marked && raw.first_line == 1) bytes.remove_prefix(documents_detail::kByteOrderMark.size());
      documents_detail::split_lines(raw, bytes, settings.text_key, &splitter);
      break;
  }
  return splitter.take();
}

bool is_empty_document(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    if (std::strchr(" \t\r\n\v\f", text[i]) != nullptr && text[i] != '\0') {
      ++i;
    } else if (text.compare(i, 3, documents_detail::kByteOrderMark) == 0) {
      i += 3;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace osdn::data
