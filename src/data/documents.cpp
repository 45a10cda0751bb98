#include "data/documents.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "data/builtin_corpus.h"
#include "data/detail/utf8.h"

namespace osdn::data {
namespace documents_detail {

constexpr size_t kBlockBytes = 1 << 20;
constexpr size_t kMaxDocumentBytes = size_t{1} << 30;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

InputFormat format_of(const std::string& path, const std::string& setting) {
  if (setting == "txt") return InputFormat::kText;
  if (setting == "jsonl") return InputFormat::kJsonLines;
  if (setting != "auto") throw UserError("prepare.format: expected auto, txt or jsonl, got \"{}\"", setting);
  if (ends_with(path, ".txt")) return InputFormat::kText;
  if (ends_with(path, ".jsonl") || ends_with(path, ".ndjson")) return InputFormat::kJsonLines;
  throw UserError(
      "prepare.input: {}: expected a name ending in .txt or .jsonl (set prepare.format for other names; "
      "unpack "
      ".gz and .zst files first)",
      path);
}

std::string utf8_problem(std::string_view text, size_t offset) {
  return fmt::format(
      "expected UTF-8, found byte 0x{:02X} at byte {} of the line (convert the file, e.g. with `iconv -f "
      "LATIN1 -t UTF-8`)",
      static_cast<unsigned char>(text[offset]), offset + 1);
}

void check_text_file(std::string_view text, const std::string& origin) {
  const size_t invalid = detail::first_invalid_utf8(text);
  if (invalid == std::string_view::npos) return;
  const std::string_view before = text.substr(0, invalid);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t start = before.rfind('\n');
  const size_t line_start = start == std::string_view::npos ? 0 : start + 1;
  throw UserError("{}:{}: {}", origin, line, utf8_problem(text.substr(line_start), invalid - line_start));
}

std::string with_unix_line_ends(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      result += text[i];
      continue;
    }
    result += '\n';
    if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
  }
  return result;
}

/// The value at a key or a dotted path of keys; nullptr when there is none.
const Json* find_value(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  if (const auto found = object.find(std::string(key)); found != object.end()) return &*found;
  for (size_t dot = key.find('.'); dot != std::string_view::npos; dot = key.find('.', dot + 1)) {
    const auto outer = object.find(std::string(key.substr(0, dot)));
    if (outer == object.end()) continue;
    if (const Json* value = find_value(*outer, key.substr(dot + 1))) return value;
  }
  return nullptr;
}

std::string text_of_line(std::string_view line, const std::string& place, const std::string& key) {
  const size_t invalid = detail::first_invalid_utf8(line);
  if (invalid != std::string_view::npos) throw UserError("{}: {}", place, utf8_problem(line, invalid));
  Json json;
  try {
    json = Json::parse(line.begin(), line.end());
  } catch (const Json::exception& failure) {
    // The library's text is "[json.exception.parse_error.101] parse error at line 1, column 9: reason".
    const std::string message = failure.what();
    const size_t reason = message.find("column");
    throw UserError("{}: expected one JSON object a line: {} (correct or remove the line)", place,
                    reason == std::string::npos ? message : message.substr(reason));
  }
  const Json* value = find_value(json, key);
  if (value == nullptr) {
    std::string keys;
    if (json.is_object())
      for (const auto& [name, unused] : json.items()) keys += (keys.empty() ? "" : ", ") + name;
    throw UserError(
        "{}: expected text under \"{}\", found {} (set prepare.text_key)", place, key,
        json.is_object() ? "only the keys: " + keys : std::string("no object but ") + json.type_name());
  }
  if (!value->is_string())
    throw UserError("{}: expected text under \"{}\", found {} (set prepare.text_key)", place, key,
                    value->type_name());
  return value->get<std::string>();
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

}  // namespace documents_detail

std::vector<InputFile> find_inputs(const config::Prepare& settings) {
  std::vector<InputFile> files;
  for (const std::string& glob : settings.input) {
    const std::vector<std::string> paths = glob_paths(glob);
    if (paths.empty())
      throw UserError("prepare.input: nothing matches {} (that is {})", glob,
                      std::filesystem::absolute(glob).lexically_normal().string());
    for (const std::string& path : paths) {
      if (std::filesystem::is_directory(path))
        throw UserError("prepare.input: {}: expected files, found a directory (use {}/*.txt or {}/*.jsonl)",
                        path, path, path);
      struct stat status {};
      if (::stat(path.c_str(), &status) != 0)
        throw EnvironmentError("{}: cannot look at the file: {}", path, std::strerror(errno));
      files.push_back(
          {.path = path,
           .format = documents_detail::format_of(path, settings.format),
           .size_bytes = status.st_size,
           .modified_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec});
    }
  }
  return files;
}

struct InputReader::Impl {
  config::Prepare settings;
  std::vector<InputFile> files;
  uint64_t builtin_seed = 0;
  size_t position = 0;  // of the file that is read
  std::optional<File> file;
  std::string rest;  // the begun last line of a block
  int64_t next_line = 1;
  int64_t next_document = 0;  // of the built-in corpus
  int64_t builtin_bytes = 0;

  bool next_builtin(RawDocuments* raw);
  void read_text(RawDocuments* raw);
  bool read_lines(RawDocuments* raw);
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

void InputReader::Impl::read_text(RawDocuments* raw) {
  const InputFile& input = files[position];
  if (static_cast<size_t>(input.size_bytes) > documents_detail::kMaxDocumentBytes)
    throw UserError(
        "{}: expected at most 1 GiB in a text file, which is one document, got {} bytes (write its documents "
        "as "
        ".jsonl, one a line)",
        input.path, input.size_bytes);
  raw->bytes = read_file(input.path);
  raw->input_bytes = static_cast<int64_t>(raw->bytes.size());
  ++position;
}

/// Whole lines of about one block. False when the file ended before any.
bool InputReader::Impl::read_lines(RawDocuments* raw) {
  const InputFile& input = files[position];
  if (!file) {
    file = File::open_for_reading(input.path);
    rest.clear();
    next_line = 1;
  }
  raw->bytes = std::exchange(rest, {});
  raw->first_line = next_line;
  bool ended = false;
  size_t last_newline = std::string::npos;
  while (last_newline == std::string::npos && !ended) {
    const size_t before = raw->bytes.size();
    raw->bytes.resize(before + documents_detail::kBlockBytes);
    const size_t got = file->read(raw->bytes.data() + before, documents_detail::kBlockBytes);
    raw->bytes.resize(before + got);
    ended = got < documents_detail::kBlockBytes;
    const size_t found = raw->bytes.rfind('\n');
    if (found != std::string::npos && found >= before) last_newline = found;
    if (last_newline == std::string::npos && raw->bytes.size() > documents_detail::kMaxDocumentBytes)
      throw UserError("{}:{}: expected lines of at most 1 GiB, this one is longer (is the file .jsonl?)",
                      input.path, next_line);
  }
  if (ended) {
    file.reset();
    ++position;
  } else {
    rest = raw->bytes.substr(last_newline + 1);
    raw->bytes.resize(last_newline + 1);
  }
  next_line += std::count(raw->bytes.begin(), raw->bytes.end(), '\n');
  raw->input_bytes = static_cast<int64_t>(raw->bytes.size());
  return !raw->bytes.empty();
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
    if (input.format == InputFormat::kText) {
      impl_->read_text(raw);
      return true;
    }
    if (impl_->read_lines(raw)) return true;
  }
  return false;
}

int64_t InputReader::total_bytes() const {
  if (impl_->settings.builtin) return impl_->settings.builtin_megabytes * 1'000'000;
  int64_t bytes = 0;
  for (const InputFile& input : impl_->files) bytes += input.size_bytes;
  return bytes;
}

std::vector<std::string> split_documents(const RawDocuments& raw, const std::string& text_key) {
  std::vector<std::string> documents;
  std::string_view bytes = raw.bytes;
  if (raw.format != InputFormat::kBuiltin && raw.first_line == 1 &&
      bytes.substr(0, documents_detail::kByteOrderMark.size()) == documents_detail::kByteOrderMark)
    bytes.remove_prefix(documents_detail::kByteOrderMark.size());
  if (raw.format == InputFormat::kText) {
    documents_detail::check_text_file(bytes, raw.origin);
    documents.push_back(documents_detail::with_unix_line_ends(bytes));
    return documents;
  }
  const char separator = raw.format == InputFormat::kBuiltin ? '\0' : '\n';
  for (int64_t line = raw.first_line; !bytes.empty(); ++line) {
    const size_t end = std::min(bytes.find(separator), bytes.size());
    const std::string_view item = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (raw.format == InputFormat::kBuiltin) {
      documents.emplace_back(item);
    } else if (!documents_detail::is_blank(item)) {
      documents.push_back(
          documents_detail::text_of_line(item, fmt::format("{}:{}", raw.origin, line), text_key));
    }
  }
  return documents;
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
