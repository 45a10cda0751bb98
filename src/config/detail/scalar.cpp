#include "config/detail/scalar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <locale>
#include <sstream>

namespace osdn::config::detail {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Removes the underscores that stand between two digits; undefined when one stands elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      result += text[i];
      continue;
    }
    if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1]))
      return std::nullopt;
  }
  return result;
}

// [sign] digits [. digits] [e [sign] digits], at least one digit in the mantissa.
bool has_number_form(std::string_view text) {
  size_t i = 0;
  const auto skip_digits = [&] {
    const size_t start = i;
    while (i < text.size() && is_digit(text[i])) ++i;
    return i - start;
  };
  if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
  size_t digits = skip_digits();
  if (i < text.size() && text[i] == '.') {
    ++i;
    digits += skip_digits();
  }
  if (digits == 0) return false;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (skip_digits() == 0) return false;
  }
  return i == text.size();
}

// YAML 1.1 readers take 010 for 8 and 0o10 is not a number to them.
bool has_leading_zero(std::string_view text) {
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && is_digit(text[1]);
}

// Words that some YAML reader takes for a boolean, null or number.
bool is_reserved_word(std::string_view text) {
  constexpr std::array<std::string_view, 15> kReserved = {"null", "true", "false", "yes",   "no",
                                                          "on",   "off",  "y",     "n",     "auto",
                                                          "inf",  ".inf", "-.inf", "+.inf", ".nan"};
  std::string lower;
  for (const char c : text) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::find(kReserved.begin(), kReserved.end(), lower) != kReserved.end();
}

bool is_plain_text(std::string_view text) {
  if (text.empty() || is_reserved_word(text)) return false;
  // A word that starts with a digit, sign or dot can be a number, date or sexagesimal to some reader.
  if (std::isalpha(static_cast<unsigned char>(text[0])) == 0 && text[0] != '/') return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return is_name_character(c) || c == '/' || c == '.' || c == '-'; });
}

}  // namespace

std::optional<double> parse_number(std::string_view text) {
  const std::optional<std::string> digits = without_underscores(text);
  if (!digits || !has_number_form(*digits)) return std::nullopt;
  // Through the classic locale: strtod would read "0.5" as 0 under a locale with a decimal comma.
  std::istringstream stream(*digits);
  stream.imbue(std::locale::classic());
  double value = 0;
  stream >> value;
  if (stream.fail() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  const std::optional<std::string> digits = without_underscores(text);
  if (!digits || !has_number_form(*digits) || has_leading_zero(*digits)) return std::nullopt;
  if (digits->find_first_of(".eE") == std::string::npos) {
    const char* first = digits->data() + (digits->front() == '+');
    int64_t value = 0;
    const auto [end, failure] = std::from_chars(first, digits->data() + digits->size(), value);
    if (failure != std::errc() || end != digits->data() + digits->size()) return std::nullopt;
    return value;
  }
  constexpr double kExactLimit = 9007199254740992.0;  // 2^53
  const std::optional<double> value = parse_number(text);
  if (!value || *value != std::floor(*value) || std::abs(*value) > kExactLimit) return std::nullopt;
  return static_cast<int64_t>(*value);
}

std::string number_hint(std::string_view text, bool integer) {
  const auto is_valid = [integer](std::string_view candidate) {
    return integer ? parse_integer(candidate).has_value() : parse_number(candidate).has_value();
  };
  if (text.size() > 1) {
    const char suffix = static_cast<char>(std::tolower(static_cast<unsigned char>(text.back())));
    const int64_t factor = suffix == 'k' ? 1024 : suffix == 'm' ? 1024 * 1024 : 0;
    const std::optional<int64_t> count = parse_integer(text.substr(0, text.size() - 1));
    if (factor != 0 && count && std::abs(*count) < (int64_t{1} << 40))
      return fmt::format("did you mean {}?", *count * factor);
  }
  std::string changed(text);
  if (std::count(changed.begin(), changed.end(), ',') == 1) {
    std::replace(changed.begin(), changed.end(), ',', '.');
    if (is_valid(changed)) return fmt::format("did you mean {}?", changed);
  }
  changed.assign(text);
  changed.erase(
      std::remove_if(changed.begin(), changed.end(), [](char c) { return c == '_' || c == ' ' || c == ','; }),
      changed.end());
  while (has_leading_zero(changed)) changed.erase(changed.find('0'), 1);
  if (changed != text && is_valid(changed)) return fmt::format("did you mean {}?", changed);
  return {};
}

std::string format_number(double value) {
  std::string text = fmt::format("{}", value);
  const size_t exponent = text.find('e');
  if (exponent == std::string::npos) return text.find('.') == std::string::npos ? text + ".0" : text;
  if (text[exponent + 2] == '0') text.erase(exponent + 2, 1);  // fmt writes two digits at least
  if (text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

std::string format_text(std::string_view text) {
  if (is_plain_text(text)) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::optional<std::string> expand_path(std::string_view text, std::string* problem) {
  std::string result;
  const auto append_variable = [&](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) {
      *problem = fmt::format("the environment variable {} is not set", name);
      return false;
    }
    result += value;
    return true;
  };
  for (size_t i = 0; i < text.size();) {
    if (text[i] != '$') {
      result += text[i++];
    } else if (i + 1 < text.size() && text[i + 1] == '$') {
      result += '$';
      i += 2;
    } else if (i + 1 < text.size() && text[i + 1] == '{') {
      const size_t end = text.find('}', i);
      if (end == std::string_view::npos || end == i + 2) {
        *problem = "\"${\" without a name and \"}\"";
        return std::nullopt;
      }
      if (!append_variable(std::string(text.substr(i + 2, end - i - 2)))) return std::nullopt;
      i = end + 1;
    } else {
      size_t end = i + 1;
      while (end < text.size() && is_name_character(text[end])) ++end;
      if (end == i + 1 || is_digit(text[i + 1])) {
        *problem = "\"$\" without a variable's name; write $$ for a dollar sign";
        return std::nullopt;
      }
      if (!append_variable(std::string(text.substr(i + 1, end - i - 1)))) return std::nullopt;
      i = end;
    }
  }
  // Last, so that a result never begins with "~" and reads back as itself.
  if (result == "~" || result.substr(0, 2) == "~/") {
    const char* home = std::getenv("HOME");
    if (home == nullptr) {
      *problem = "\"~\" needs the environment variable HOME, which is not set";
      return std::nullopt;
    }
    return home + result.substr(1);
  }
  if (!result.empty() && result[0] == '~') {
    *problem = "\"~name\" is not supported; write the directory out (or ./~name for a file of that name)";
    return std::nullopt;
  }
  return result;
}

std::string escape_path(std::string_view path) {
  std::string result;
  for (const char c : path) {
    if (c == '$') result += '$';
    result += c;
  }
  return result;
}

}  // namespace osdn::config::detail
