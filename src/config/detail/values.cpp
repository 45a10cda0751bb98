#include "config/detail/values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/detail/scalar.h"
#include "config/detail/suggest.h"

namespace osdn::config::detail {
namespace {

// "8" for a bound that is whole, the shortest form otherwise.
std::string bound_text(double bound) { return fmt::format("{}", bound); }

std::string describe_range(const std::string& noun, const Rule& rule) {
  const bool has_low = std::isfinite(rule.low);
  const bool has_high = std::isfinite(rule.high);
  if (!has_low && !has_high) return noun;
  if (has_low && has_high && !rule.above_low && !rule.below_high)
    return fmt::format("{} from {} to {}", noun, bound_text(rule.low), bound_text(rule.high));
  std::string text = noun;
  if (has_low) text += fmt::format(" {} {}", rule.above_low ? "above" : "of at least", bound_text(rule.low));
  if (has_low && has_high) text += " and";
  if (has_high) text += fmt::format(" {} {}", rule.below_high ? "below" : "at most", bound_text(rule.high));
  return text;
}

bool is_in_range(const Rule& rule, double value) {
  return std::isfinite(value) && (rule.above_low ? value > rule.low : value >= rule.low) &&
         (rule.below_high ? value < rule.high : value <= rule.high);
}

bool is_choice(const Rule& rule, const std::string& value) {
  return rule.choices.empty() ||
         std::find(rule.choices.begin(), rule.choices.end(), value) != rule.choices.end();
}

template <typename T>
void read_parsed(const Node& node, const std::string& key, const Rule& rule, const std::optional<T>& parsed,
                 T& value, bool is_integer) {
  const std::string expected = describe(rule, &value);
  if (node.kind != Node::Kind::kScalar) fail_value(node, key, expected);
  if (node.quoted) fail_value(node, key, expected, parsed ? "remove the quotes" : "");
  if (!parsed) fail_value(node, key, expected, number_hint(node.text, is_integer));
  if (outside(rule, *parsed)) fail_value(node, key, expected);
  value = *parsed;
}

std::string item_key(const std::string& key, size_t index) { return fmt::format("{}[{}]", key, index); }

void require_list(const Node& node, const std::string& key, const std::string& expected) {
  if (node.kind == Node::Kind::kSequence) return;
  fail_value(node, key, expected,
             node.kind == Node::Kind::kScalar ? fmt::format("write [{}]", format_text(node.text)) : "");
}

std::string write_text(const Rule& rule, const std::string& value) {
  return format_text(rule.path ? escape_path(value) : value);
}

}  // namespace

void fail_value(const Node& node, const std::string& key, const std::string& expected,
                const std::string& hint) {
  const std::string suffix = hint.empty() ? "" : fmt::format(" ({})", hint);
  if (node.kind == Node::Kind::kNull)
    throw UserError("{}: {}: value missing: expected {}{}", node.where(), key, expected, suffix);
  throw UserError("{}: {}: expected {}, got {}{}", node.where(), key, expected, node.described(), suffix);
}

std::string describe_choices(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, " | "));
}

size_t read_choice(const Node& node, const std::string& key, const std::vector<std::string>& names) {
  const std::string expected = describe_choices(names);
  if (node.kind != Node::Kind::kScalar) fail_value(node, key, expected);
  const auto found = std::find(names.begin(), names.end(), node.text);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  const std::string near = nearest(node.text, names);
  fail_value(node, key, expected, near.empty() ? "" : fmt::format("did you mean {}?", near));
}

std::string describe(const Rule& rule, const int64_t*) {
  const std::string limit = rule.high == kLargestCount ? " up to 1e15" : "";
  const bool is_open = !std::isfinite(rule.high) || rule.high == kLargestCount;
  if (rule.low == 1 && is_open) return "a positive integer" + limit;
  if (rule.low == 0 && is_open) return "a non-negative integer" + limit;
  return describe_range("an integer", rule);
}
std::string describe(const Rule& rule, const double*) { return describe_range("a number", rule); }
std::string describe(const Rule&, const bool*) { return "true or false"; }
std::string describe(const Rule& rule, const std::string*) {
  if (!rule.choices.empty()) return describe_choices(rule.choices);
  return rule.path ? "a path" : "text";
}
std::string describe(const Rule& rule, const std::array<double, 2>*) {
  return fmt::format("a list [a, b] of two, each {}", describe_range("a number", rule));
}
std::string describe(const Rule& rule, const std::vector<int64_t>*) {
  return fmt::format("a list, each {}", describe(rule, static_cast<const int64_t*>(nullptr)));
}
std::string describe(const Rule& rule, const std::vector<std::string>*) {
  return rule.path ? "a list of paths" : "a list of texts";
}
std::string describe(const Rule&, const std::vector<WeightedSource>*) {
  return "a list of paths or of {path, weight}";
}

void read(const Node& node, const std::string& key, const Rule& rule, int64_t& value) {
  read_parsed(node, key, rule, parse_integer(node.text), value, true);
}

void read(const Node& node, const std::string& key, const Rule& rule, double& value) {
  read_parsed(node, key, rule, parse_number(node.text), value, false);
}

void read(const Node& node, const std::string& key, const Rule& rule, bool& value) {
  const std::string expected = describe(rule, &value);
  if (node.kind != Node::Kind::kScalar) fail_value(node, key, expected);
  const std::string& text = node.text;
  const bool is_true = text == "true" || text == "True" || text == "TRUE";
  const bool is_false = text == "false" || text == "False" || text == "FALSE";
  if (node.quoted) fail_value(node, key, expected, is_true || is_false ? "remove the quotes" : "");
  if (!is_true && !is_false) {
    // YAML 1.1 readers take these for booleans, YAML 1.2 readers for text.
    const bool meant_true = text == "yes" || text == "on" || text == "1";
    const bool meant_false = text == "no" || text == "off" || text == "0";
    fail_value(node, key, expected,
               meant_true    ? "did you mean true?"
               : meant_false ? "did you mean false?"
                             : "");
  }
  value = is_true;
}

void read(const Node& node, const std::string& key, const Rule& rule, std::string& value) {
  const std::string expected = describe(rule, &value);
  if (node.kind == Node::Kind::kNull && rule.may_be_unset) {
    value.clear();
    return;
  }
  if (node.kind != Node::Kind::kScalar || node.text.empty()) fail_value(node, key, expected);
  if (!rule.choices.empty()) {
    value = rule.choices[read_choice(node, key, rule.choices)];
    return;
  }
  if (!rule.path) {
    value = node.text;
    return;
  }
  std::string problem;
  const std::optional<std::string> path = expand_path(node.text, &problem);
  if (!path || path->empty()) fail_value(node, key, expected, path ? "it expands to nothing" : problem);
  value = *path;
}

void read(const Node& node, const std::string& key, const Rule& rule, std::array<double, 2>& value) {
  const std::string expected = describe(rule, &value);
  if (node.kind != Node::Kind::kSequence) fail_value(node, key, expected);
  if (node.items.size() != value.size())
    throw UserError("{}: {}: expected {}, got {} items", node.where(), key, expected, node.items.size());
  for (size_t i = 0; i < value.size(); ++i) read(node.items[i], item_key(key, i), rule, value[i]);
}

void read(const Node& node, const std::string& key, const Rule& rule, std::vector<int64_t>& value) {
  require_list(node, key, describe(rule, &value));
  std::vector<int64_t> numbers(node.items.size());
  for (size_t i = 0; i < numbers.size(); ++i) read(node.items[i], item_key(key, i), rule, numbers[i]);
  value = std::move(numbers);
}

void read(const Node& node, const std::string& key, const Rule& rule, std::vector<std::string>& value) {
  require_list(node, key, describe(rule, &value));
  std::vector<std::string> texts(node.items.size());
  for (size_t i = 0; i < texts.size(); ++i) read(node.items[i], item_key(key, i), rule, texts[i]);
  value = std::move(texts);
}

void read(const Node& node, const std::string& key, const Rule& rule, std::vector<WeightedSource>& value) {
  require_list(node, key, describe(rule, &value));
  std::vector<WeightedSource> sources(node.items.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    const Node& item = node.items[i];
    const std::string place = item_key(key, i);
    if (item.kind != Node::Kind::kMap) {
      read(item, place, rule, sources[i].path);
      continue;
    }
    bool has_path = false;
    for (const NodeEntry& entry : item.entries) {
      const std::string entry_key = join_key(place, entry.key);
      if (entry.key == "path") {
        read(entry.value, entry_key, rule, sources[i].path);
        has_path = true;
      } else if (entry.key == "weight") {
        Rule positive;
        positive.low = 0;
        positive.above_low = true;
        read(entry.value, entry_key, positive, sources[i].weight);
      } else {
        throw UserError("{}: {}: unknown key; valid keys here: path, weight", entry.where(), entry_key);
      }
    }
    if (!has_path) throw UserError("{}: {}: value missing: expected the key path", item.where(), place);
  }
  value = std::move(sources);
}

std::string write(const Rule&, int64_t value) { return fmt::format("{}", value); }
std::string write(const Rule&, double value) { return format_number(value); }
std::string write(const Rule&, bool value) { return value ? "true" : "false"; }
std::string write(const Rule& rule, const std::string& value) {
  if (value.empty() && rule.may_be_unset) return "null";
  // A choice is read by its name whatever a YAML reader makes of it.
  return rule.choices.empty() ? write_text(rule, value) : value;
}
std::string write(const Rule&, const std::array<double, 2>& value) {
  return fmt::format("[{}, {}]", format_number(value[0]), format_number(value[1]));
}
std::string write(const Rule&, const std::vector<int64_t>& value) {
  return fmt::format("[{}]", fmt::join(value, ", "));
}
std::string write(const Rule& rule, const std::vector<std::string>& value) {
  std::vector<std::string> texts;
  for (const std::string& text : value) texts.push_back(write_text(rule, text));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}
std::string write(const Rule& rule, const std::vector<WeightedSource>& value) {
  const bool is_weighted = std::any_of(value.begin(), value.end(),
                                       [](const WeightedSource& source) { return source.weight != 1.0; });
  std::vector<std::string> texts;
  for (const WeightedSource& source : value) {
    const std::string path = write_text(rule, source.path);
    texts.push_back(is_weighted ? fmt::format("{{path: {}, weight: {}}}", path, format_number(source.weight))
                                : path);
  }
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

std::optional<std::string> outside(const Rule& rule, int64_t value) {
  if (is_in_range(rule, static_cast<double>(value))) return std::nullopt;
  return write(rule, value);
}
std::optional<std::string> outside(const Rule& rule, double value) {
  if (is_in_range(rule, value)) return std::nullopt;
  return write(rule, value);
}
std::optional<std::string> outside(const Rule&, bool) { return std::nullopt; }
std::optional<std::string> outside(const Rule& rule, const std::string& value) {
  if (is_choice(rule, value) && (!value.empty() || rule.may_be_unset)) return std::nullopt;
  return fmt::format("\"{}\"", value);
}
std::optional<std::string> outside(const Rule& rule, const std::array<double, 2>& value) {
  for (const double item : value)
    if (outside(rule, item)) return write(rule, value);
  return std::nullopt;
}
std::optional<std::string> outside(const Rule& rule, const std::vector<int64_t>& value) {
  for (const int64_t item : value)
    if (outside(rule, item)) return write(rule, value);
  return std::nullopt;
}
std::optional<std::string> outside(const Rule&, const std::vector<std::string>& value) {
  for (const std::string& text : value)
    if (text.empty()) return "an empty path";
  return std::nullopt;
}
std::optional<std::string> outside(const Rule&, const std::vector<WeightedSource>& value) {
  for (const WeightedSource& source : value) {
    if (source.path.empty()) return "an empty path";
    if (!(source.weight > 0) || !std::isfinite(source.weight))
      return fmt::format("the weight {}", format_number(source.weight));
  }
  return std::nullopt;
}

}  // namespace osdn::config::detail
