// What the field table is made of: the rules of values, and the table that collects sections and fields. Used
// by schema.cpp and schema_model.cpp alone.
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/detail/schema.h"
#include "config/detail/values.h"

namespace osdn::config::detail {

inline constexpr double kLargestDimension = 1 << 20;

inline Rule any() { return {}; }

inline Rule at_least(double low) {
  Rule rule;
  rule.low = low;
  return rule;
}

inline Rule above(double low) {
  Rule rule = at_least(low);
  rule.above_low = true;
  return rule;
}

inline Rule between(double low, double high) {
  Rule rule = at_least(low);
  rule.high = high;
  return rule;
}

inline Rule from_up_to_below(double low, double high) {
  Rule rule = between(low, high);
  rule.below_high = true;
  return rule;
}

inline Rule above_up_to(double low, double high) {
  Rule rule = between(low, high);
  rule.above_low = true;
  return rule;
}

inline Rule dimension() { return between(1, kLargestDimension); }
inline Rule count() { return between(1, kLargestCount); }

inline Rule path() {
  Rule rule;
  rule.path = true;
  return rule;
}

inline Rule one_of(std::vector<std::string> choices) {
  Rule rule;
  rule.choices = std::move(choices);
  return rule;
}

inline Rule automatic(Rule rule) {
  rule.automatic = true;
  return rule;
}

inline Rule may_be_unset() {
  Rule rule;
  rule.may_be_unset = true;
  return rule;
}

class Table {
 public:
  void section(std::string key, std::string meaning) {
    section_ = key;
    sections.push_back({std::move(key), std::move(meaning)});
  }

  // `access` returns a reference to the field for a const and a non-const Config.
  template <typename Access>
  void field(const std::string& name, Access access, const Rule& rule, std::string meaning) {
    using T = std::remove_cv_t<std::remove_reference_t<decltype(access(std::declval<Config&>()))>>;
    const std::string key = join_key(section_, name);
    Field made;
    made.key = key;
    made.section = section_;
    made.name = name;
    made.type = describe(rule, static_cast<const T*>(nullptr));
    made.meaning = std::move(meaning);
    made.read = [access, rule, key](const Node& node, Config& config) {
      read(node, key, rule, access(config));
    };
    made.write = [access, rule](const Config& config) { return write(rule, access(config)); };
    made.outside = [access, rule](const Config& config) { return outside(rule, access(config)); };
    fields.push_back(std::move(made));
  }

  std::vector<Section> sections;
  std::vector<Field> fields;

 private:
  std::string section_;
};

/// The sections model, model.attention and model.osdn.
void add_model(Table& table);

}  // namespace osdn::config::detail
