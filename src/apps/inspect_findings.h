// What `osdn inspect` finds out about files and directories of the program: each function reads all of one
// thing, checks every byte that can be checked, and appends a Finding.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace osdn::apps {

struct Finding {
  std::string path;
  std::string kind;                   // "token shard", "checkpoint", ...
  Json facts = Json::object();        // in the order in which they are shown
  std::vector<std::string> remarks;   // worth knowing, no damage
  std::vector<std::string> problems;  // damage: what, where, what to do
  bool intact() const { return problems.empty(); }
};

/// Dispatches by what lies at the path. Throws UserError for what the program did not make.
void inspect_path(const std::string& path, std::vector<Finding>* findings);

/// Structure, digest, every token id against the vocabulary.
void inspect_shard(const std::string& path, std::vector<Finding>* findings);
/// The shards of a folder, and that they, prepare.json and tokenizer.model belong together.
void inspect_shard_folder(const std::string& path, std::vector<Finding>* findings);
void inspect_tokenizer(const std::string& path, std::vector<Finding>* findings);

/// Structure; every element finite.
void inspect_safetensors(const std::string& path, std::vector<Finding>* findings);
/// Manifest, digests, names and shapes against its configuration, every element finite.
void inspect_checkpoint(const std::string& path, std::vector<Finding>* findings);
void inspect_checkpoints(const std::string& path, std::vector<Finding>* findings);
/// A directory in the exchange format: config.json and weights.
void inspect_model_directory(const std::string& path, std::vector<Finding>* findings);

/// Configuration, metrics, environment and every checkpoint.
void inspect_run(const std::string& path, std::vector<Finding>* findings);

}  // namespace osdn::apps
