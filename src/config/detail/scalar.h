// Scalars between text and values: numbers as YAML 1.1 and 1.2 readers both mean them, text that survives
// both, paths.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace osdn::config::detail {

/// Decimal integers with optional sign, single underscores between digits, and integral numbers such as 1e6
/// or 8.0 up to 2^53. Undefined for anything else (leading zeros and 64-bit overflow included).
std::optional<int64_t> parse_integer(std::string_view text);

/// Finite decimal numbers, 1e-4 and .5 included. Undefined for anything else.
std::optional<double> parse_number(std::string_view text);

/// What a refused number probably meant, as "did you mean 8192?", or empty: "8k", "0,001", "1_000_", "007".
std::string number_hint(std::string_view text, bool integer);

/// Shortest decimal form that reads back bit-exactly and that YAML 1.1 readers take for a float
/// (1.0e-4, 3.0).
std::string format_number(double value);

/// Plain where every YAML reader takes it for this text, double-quoted otherwise.
std::string format_text(std::string_view text);

/// Expands a leading `~/`, `$NAME` and `${NAME}`; `$$` stands for `$`. On failure returns nothing and sets
/// `problem` (unset variable, ~user, unclosed brace).
std::optional<std::string> expand_path(std::string_view text, std::string* problem);

/// The text that expand_path turns into `path`.
std::string escape_path(std::string_view path);

}  // namespace osdn::config::detail
