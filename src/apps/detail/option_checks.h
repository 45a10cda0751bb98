// Ranges of numbers given as options, told in words.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>
#include <system_error>

namespace osdn::apps {

/// CLI11's own ranges name their bounds with 309 digits, and let NaN pass.
inline CLI::Validator number_where(const std::string& expected, bool (*holds)(double)) {
  return CLI::Validator(
      [expected, holds](std::string& text) {
        double value = 0;
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = failure == std::errc() && end == text.data() + text.size();
        return whole && holds(value) ? std::string() : "expected " + expected + ", got \"" + text + "\"";
      },
      "");
}

inline CLI::Validator at_least_zero() {
  return number_where("a number of at least 0", [](double value) { return value >= 0 && value < 1e300; });
}
inline CLI::Validator above_zero() {
  return number_where("a number above 0", [](double value) { return value > 0 && value < 1e300; });
}
inline CLI::Validator probability_above_zero() {
  return number_where("a number above 0 and at most 1", [](double value) { return value > 0 && value <= 1; });
}

}  // namespace osdn::apps
