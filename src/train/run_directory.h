// The directory of a run (runs/NAME): one writer at a time, the effective configuration with its frozen
// automatic values, and the rule of what counts as the same run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fs.h"
#include "config/config.h"

namespace osdn::train {

class RunDirectory {
 public:
  /// Creates the directory if needed and locks it for the object's life. Throws UserError when another
  /// process holds it, naming that process. Of the ranks of a job rank 0 alone owns it; the others write
  /// their logs and shares of checkpoints there, under its lock.
  enum class Role { kOwner, kGuest };
  explicit RunDirectory(const config::Run& run, Role role = Role::kOwner);

  const std::string& path() const { return path_; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }

  void write_config(const config::Config& config) const;

 private:
  std::string path_;
  std::optional<FileLock> lock_;
};

/// Takes automatic values (micro-batch, device, precision, vocabulary) that `config` leaves open from the
/// stored run, and throws UserError naming every key that must not differ but does (model, data, optimizer,
/// seed, and train settings except steps, micro-batch, graph and recompute). Paths of the data may differ:
/// their content is compared by digest when they are opened.
config::Config reconcile(const config::Config& stored, config::Config config);

/// Makes relative paths of the configuration absolute, against the working directory.
config::Config with_absolute_paths(config::Config config);

}  // namespace osdn::train
