// Reading config.json key by key: typed, strict, and remembering which keys were met. Used by
// fla_config_read.cpp and fla_config_osdn.cpp.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/detail/strict_json.h"
#include "config/config.h"

namespace osdn::checkpoint::fla_detail {

/// A model_type and what it stands for. `layers`, `heads`, `head_dim`, `value_expand`: what the format's own
/// code takes when the keys are absent; head_dim 0: hidden size over heads, never a key.
struct Family {
  const char* model_type;
  config::Backbone backbone;
  bool authors;  // of the OSDN authors' code, with its keys
  const char* architecture;
  int64_t layers;
  int64_t heads;
  int64_t head_dim;
  double value_expand;
};

const std::vector<Family>& families();
const Family* find_family(const std::string& model_type);
/// The one that a model is written as.
const Family& family_of(const config::Model& model);

/// A key that changes the mathematics and has few supported meanings.
struct FixedKey {
  const char* key;
  std::vector<StrictJson> accepted;
  const char* why;
};

class Reader {
 public:
  Reader(std::string path, const StrictJson& json) : path_(std::move(path)), json_(json) {}

  /// Null stands for an absent key.
  const StrictJson* find(const char* key);
  int64_t count(const char* key, int64_t otherwise);
  std::optional<int64_t> optional_count(const char* key);
  double number(const char* key, double otherwise);
  bool flag(const char* key, bool otherwise);
  std::string text(const char* key, const std::string& otherwise);
  /// Absent: `otherwise`; null: none; lists (several ends of a text) are no id of this program.
  std::optional<int64_t> id(const char* key, std::optional<int64_t> otherwise);
  void demand(const FixedKey& fixed);
  void demand_not_null(const char* key, const std::string& expected) const;
  void pass(const std::string& key) { known_.insert(key); }
  std::vector<std::string> unknown() const;
  [[noreturn]] void refuse(const std::string& key, const std::string& expected,
                           const StrictJson& value) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const StrictJson& json_;
  std::set<std::string> known_;
};

/// model.osdn of an authors' directory.
config::Osdn read_osdn(const Family& family, Reader& reader);
/// Throws UserError naming the first key of model.osdn that the authors' code computes otherwise.
void refuse_osdn_without_place(const Family& family, const config::Model& model);
/// Adds the authors' keys.
void write_osdn(const Family& family, const config::Model& model, Json* json);
/// `export: key: got cannot be expressed in this format: why`.
[[noreturn]] void refuse_export(const char* key, const std::string& got, const std::string& why);

}  // namespace osdn::checkpoint::fla_detail
