#include "data/detail/jsonl.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"

namespace osdn::data::detail {
namespace jsonl_detail {

constexpr size_t kMaxListedKeys = 20;
constexpr size_t kMaxQuotedBytes = 200;

/// The start of a text that may be long, whole characters only.
std::string shortened(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  return text.substr(0, limit) + "...";
}

/// A way to the key so far: the dots at which it was cut, the last of them right before what is still to
/// find.
using Way = std::vector<size_t>;

bool is_better(const Way& way, const Way& other) {
  return std::make_tuple(way.size(), std::cref(way)) < std::make_tuple(other.size(), std::cref(other));
}

/// Listens to the parser and keeps the text under the key.
class TextFinder {
 public:
  TextFinder(const std::string& key, bool list_keys) : key_(key), list_keys_(list_keys) {}

  bool found() const { return found_; }
  const char* type() const {
    return type_;
  }  // of the found value, or of the line's value when it's no object
  bool is_object() const { return is_object_; }
  std::string take_text() { return std::move(text_); }
  const std::string& keys() const { return keys_; }
  const std::string& failure() const { return failure_; }

  bool null() { return value("null", nullptr); }
  bool boolean(bool /*unused*/) { return value("a boolean", nullptr); }
  bool number_integer(Json::number_integer_t /*unused*/) { return value("a number", nullptr); }
  bool number_unsigned(Json::number_unsigned_t /*unused*/) { return value("a number", nullptr); }
  bool number_float(Json::number_float_t /*unused*/, const std::string& /*unused*/) {
    return value("a number", nullptr);
  }
  bool string(std::string& text) { return value("text", &text); }
  bool binary(Json::binary_t& /*unused*/) { return value("bytes", nullptr); }

  bool start_object(std::size_t /*unused*/) {
    if (skipped_depth_ > 0 || (started_ && ways_.empty())) {
      ++skipped_depth_;
      return true;
    }
    if (!started_) {
      started_ = true;
      is_object_ = true;
      ways_.push_back({Way{}});
      prefixes_.emplace_back();
      return true;
    }
    keep("an object", nullptr);
    if (inner_.empty()) {
      ++skipped_depth_;
    } else {
      ways_.push_back(std::exchange(inner_, {}));
      prefixes_.push_back(prefixes_.back() + name_ + ".");
    }
    return true;
  }
  bool end_object() {
    if (skipped_depth_ > 0) {
      --skipped_depth_;
    } else {
      ways_.pop_back();
      prefixes_.pop_back();
    }
    return true;
  }
  bool start_array(std::size_t /*unused*/) {
    if (skipped_depth_ == 0) value("an array", nullptr);
    ++skipped_depth_;
    return true;
  }
  bool end_array() {
    --skipped_depth_;
    return true;
  }

  bool key(std::string& name) {
    if (skipped_depth_ > 0) return true;
    inner_.clear();
    matches_.clear();
    for (const Way& way : ways_.back()) {
      const size_t begin = way.empty() ? 0 : way.back() + 1;
      const std::string_view rest = std::string_view(key_).substr(begin);
      if (rest == name) matches_.push_back(way);
      if (rest.size() > name.size() && rest[name.size()] == '.' && rest.substr(0, name.size()) == name) {
        inner_.push_back(way);
        inner_.back().push_back(begin + name.size());
      }
    }
    if (!inner_.empty()) name_ = name;
    if (list_keys_ && listed_++ < kMaxListedKeys)
      keys_ += (keys_.empty() ? "" : ", ") + prefixes_.back() + shortened(name, kMaxQuotedBytes);
    return true;
  }

  bool parse_error(std::size_t /*unused*/, const std::string& /*unused*/, const Json::exception& error) {
    // The library's text is "[json.exception.parse_error.101] parse error at line 1, column 9: reason".
    const std::string message = error.what();
    const size_t reason = message.find("column");
    const size_t bracket = message.find("] ");
    failure_ = shortened(message.substr(reason != std::string::npos    ? reason
                                        : bracket != std::string::npos ? bracket + 2
                                                                       : 0),
                         kMaxQuotedBytes);
    return false;
  }

 private:
  bool value(const char* type, std::string* text) {
    if (skipped_depth_ > 0) return true;
    if (!started_) {
      started_ = true;
      type_ = type;
    } else if (!ways_.empty()) {
      keep(type, text);
    }
    return true;
  }

  /// Takes the value that follows the current key when it lies on the best way so far.
  void keep(const char* type, std::string* text) {
    for (const Way& way : std::exchange(matches_, {})) {
      if (found_ && is_better(best_, way)) continue;
      found_ = true;
      best_ = way;
      type_ = type;
      text_.clear();
      if (text != nullptr) text_ = std::move(*text);
    }
  }

  const std::string& key_;
  bool list_keys_;
  bool started_ = false;
  bool is_object_ = false;
  int64_t skipped_depth_ = 0;           // of open values away from the key
  std::vector<std::vector<Way>> ways_;  // by open object on the way to the key
  std::vector<std::string> prefixes_;   // of the keys of these objects
  std::vector<Way> inner_;              // ways into the value of the current key
  std::vector<Way> matches_;            // ways that end at the current key
  std::string name_;                    // the current key, when there are ways into its value
  bool found_ = false;
  Way best_;
  const char* type_ = "nothing";
  std::string text_;
  size_t listed_ = 0;
  std::string keys_;
  std::string failure_;
};

std::string keys_of(std::string_view line, const std::string& key) {
  TextFinder finder(key, true);
  Json::sax_parse(line.begin(), line.end(), &finder);
  return finder.keys().empty() ? "an object without keys" : "only the keys: " + finder.keys();
}

}  // namespace jsonl_detail

std::string utf8_problem(std::string_view text, size_t offset, const char* unit) {
  const std::string_view start = text.substr(offset, 2);
  const bool wide = offset == 0 && (start == "\xFF\xFE" || start == "\xFE\xFF");
  return fmt::format("expected UTF-8, found byte 0x{:02X} at byte {} of the {} ({})",
                     static_cast<unsigned char>(text[offset]), offset + 1, unit,
                     wide ? "this is UTF-16: convert the file with `iconv -f UTF-16 -t UTF-8`"
                          : "convert the file, e.g. with `iconv -f LATIN1 -t UTF-8`");
}

std::string text_of_json_line(std::string_view line, const std::string& key, const std::string& place,
                              bool open_ended) {
  const size_t invalid = first_invalid_utf8(line);
  if (invalid != std::string_view::npos)
    throw RecordError(RecordFault::kInvalidUtf8,
                      fmt::format("{}: {}", place, utf8_problem(line, invalid, "line")));
  jsonl_detail::TextFinder finder(key, false);
  if (!Json::sax_parse(line.begin(), line.end(), &finder)) {
    // The library's words for input that ends too early.
    const bool ended_early = finder.failure().find("unexpected end of input") != std::string::npos ||
                             finder.failure().find("closing quote") != std::string::npos;
    if (open_ended && ended_early)
      throw RecordError(
          RecordFault::kCutOffLine,
          fmt::format("{}: expected one JSON object a line, found one that breaks off at the end of the "
                      "file: {} (fetch the file again, or remove the line)",
                      place, finder.failure()));
    throw RecordError(RecordFault::kBrokenJson,
                      fmt::format("{}: expected one JSON object a line: {} (correct or remove the line)",
                                  place, finder.failure()));
  }
  if (!finder.found()) {
    const bool object = finder.is_object();
    throw RecordError(
        object ? RecordFault::kKeyMissing : RecordFault::kNotText,
        fmt::format("{}: expected text under \"{}\", found {} (set prepare.text_key)", place, key,
                    object ? jsonl_detail::keys_of(line, key)
                           : fmt::format("{} instead of an object", finder.type())));
  }
  if (finder.type() != std::string_view("text")) {
    const bool null = finder.type() == std::string_view("null");
    throw RecordError(
        null ? RecordFault::kNull : RecordFault::kNotText,
        fmt::format("{}: expected text under \"{}\", found {} (set prepare.text_key, or correct the line)",
                    place, key, finder.type()));
  }
  return finder.take_text();
}

}  // namespace osdn::data::detail
