// How one value of each type is described, read from a node, checked against its rule, and written back. The
// field table (schema.h) is built from these overloads.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/config.h"
#include "config/detail/node.h"

namespace osdn::config::detail {

/// What a field accepts beyond its C++ type.
struct Rule {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;            // low itself is excluded
  bool below_high = false;           // high itself is excluded
  bool path = false;                 // text: ~ and environment variables are expanded
  bool may_be_unset = false;         // text: null stands for the empty text
  bool automatic = false;            // optional values: "auto" is the word for unset
  std::vector<std::string> choices;  // text: the only values
};

/// The largest count: exact in a double, and far from the limit of 64 bits.
inline constexpr double kLargestCount = 1e15;

/// `where: key: expected E, got G (hint)`.
[[noreturn]] void fail_value(const Node& node, const std::string& key, const std::string& expected,
                             const std::string& hint = {});

// The spelling of every enumerator, in declaration order.
template <typename Enum>
struct EnumNames;
template <>
struct EnumNames<Device> {
  static constexpr std::array<std::string_view, 3> kNames = {"auto", "cuda", "cpu"};
};
template <>
struct EnumNames<Resume> {
  static constexpr std::array<std::string_view, 2> kNames = {"auto", "never"};
};
template <>
struct EnumNames<Backbone> {
  static constexpr std::array<std::string_view, 4> kNames = {"delta_net", "gated_delta_net", "kda",
                                                             "transformer"};
};
template <>
struct EnumNames<QkNorm> {
  static constexpr std::array<std::string_view, 2> kNames = {"l2", "sum"};
};
template <>
struct EnumNames<QkActivation> {
  static constexpr std::array<std::string_view, 4> kNames = {"silu", "relu", "elu", "identity"};
};
template <>
struct EnumNames<Hypergradient> {
  static constexpr std::array<std::string_view, 2> kNames = {"beta_aware", "beta_free"};
};
template <>
struct EnumNames<Retention> {
  static constexpr std::array<std::string_view, 4> kNames = {"none", "constant", "own_gate", "state_gate"};
};
template <>
struct EnumNames<Documents> {
  static constexpr std::array<std::string_view, 2> kNames = {"reset", "carry"};
};
template <>
struct EnumNames<Schedule> {
  static constexpr std::array<std::string_view, 4> kNames = {"cosine", "linear", "wsd", "constant"};
};
template <>
struct EnumNames<Precision> {
  static constexpr std::array<std::string_view, 3> kNames = {"auto", "float32", "bfloat16"};
};
template <>
struct EnumNames<Recompute> {
  static constexpr std::array<std::string_view, 3> kNames = {"none", "mixer", "block"};
};
template <>
struct EnumNames<Exchange> {
  static constexpr std::array<std::string_view, 2> kNames = {"auto", "nccl"};
};
template <>
struct EnumNames<TokenizerType> {
  static constexpr std::array<std::string_view, 2> kNames = {"bpe", "unigram"};
};

template <typename Enum>
std::string enum_name(Enum value) {
  return std::string(EnumNames<Enum>::kNames.at(static_cast<size_t>(value)));
}

std::string describe_choices(const std::vector<std::string>& names);
/// Index of the name that the node holds; refuses with the nearest name.
size_t read_choice(const Node& node, const std::string& key, const std::vector<std::string>& names);

template <typename Enum>
std::vector<std::string> enum_names() {
  return {EnumNames<Enum>::kNames.begin(), EnumNames<Enum>::kNames.end()};
}

// describe(): completes "expected ...". read(): strict. write(): YAML in one line. outside(): the value, as a
// message shows it, when the rule refuses it.

std::string describe(const Rule& rule, const int64_t*);
std::string describe(const Rule& rule, const double*);
std::string describe(const Rule& rule, const bool*);
std::string describe(const Rule& rule, const std::string*);
std::string describe(const Rule& rule, const std::array<double, 2>*);
std::string describe(const Rule& rule, const std::vector<int64_t>*);
std::string describe(const Rule& rule, const std::vector<std::string>*);
std::string describe(const Rule& rule, const std::vector<WeightedSource>*);

void read(const Node& node, const std::string& key, const Rule& rule, int64_t& value);
void read(const Node& node, const std::string& key, const Rule& rule, double& value);
void read(const Node& node, const std::string& key, const Rule& rule, bool& value);
void read(const Node& node, const std::string& key, const Rule& rule, std::string& value);
void read(const Node& node, const std::string& key, const Rule& rule, std::array<double, 2>& value);
void read(const Node& node, const std::string& key, const Rule& rule, std::vector<int64_t>& value);
void read(const Node& node, const std::string& key, const Rule& rule, std::vector<std::string>& value);
void read(const Node& node, const std::string& key, const Rule& rule, std::vector<WeightedSource>& value);

std::string write(const Rule& rule, int64_t value);
std::string write(const Rule& rule, double value);
std::string write(const Rule& rule, bool value);
std::string write(const Rule& rule, const std::string& value);
std::string write(const Rule& rule, const std::array<double, 2>& value);
std::string write(const Rule& rule, const std::vector<int64_t>& value);
std::string write(const Rule& rule, const std::vector<std::string>& value);
std::string write(const Rule& rule, const std::vector<WeightedSource>& value);

std::optional<std::string> outside(const Rule& rule, int64_t value);
std::optional<std::string> outside(const Rule& rule, double value);
std::optional<std::string> outside(const Rule& rule, bool value);
std::optional<std::string> outside(const Rule& rule, const std::string& value);
std::optional<std::string> outside(const Rule& rule, const std::array<double, 2>& value);
std::optional<std::string> outside(const Rule& rule, const std::vector<int64_t>& value);
std::optional<std::string> outside(const Rule& rule, const std::vector<std::string>& value);
std::optional<std::string> outside(const Rule& rule, const std::vector<WeightedSource>& value);

template <typename Enum, typename = std::enable_if_t<std::is_enum_v<Enum>>>
std::string describe(const Rule&, const Enum*) {
  return describe_choices(enum_names<Enum>());
}
template <typename Enum, typename = std::enable_if_t<std::is_enum_v<Enum>>>
void read(const Node& node, const std::string& key, const Rule&, Enum& value) {
  value = static_cast<Enum>(read_choice(node, key, enum_names<Enum>()));
}
template <typename Enum, typename = std::enable_if_t<std::is_enum_v<Enum>>>
std::string write(const Rule&, Enum value) {
  return enum_name(value);
}
template <typename Enum, typename = std::enable_if_t<std::is_enum_v<Enum>>>
std::optional<std::string> outside(const Rule&, Enum) {
  return std::nullopt;
}

template <typename T>
std::string describe(const Rule& rule, const std::optional<T>*) {
  return describe(rule, static_cast<const T*>(nullptr)) + (rule.automatic ? ", or auto" : ", or null");
}
template <typename T>
void read(const Node& node, const std::string& key, const Rule& rule, std::optional<T>& value) {
  if (node.kind == Node::Kind::kNull || (rule.automatic && node.is_plain("auto"))) {
    value.reset();
    return;
  }
  T present{};
  read(node, key, rule, present);
  value = std::move(present);
}
template <typename T>
std::string write(const Rule& rule, const std::optional<T>& value) {
  if (value) return write(rule, *value);
  return rule.automatic ? "auto" : "null";
}
template <typename T>
std::optional<std::string> outside(const Rule& rule, const std::optional<T>& value) {
  return value ? outside(rule, *value) : std::nullopt;
}

}  // namespace osdn::config::detail
