// Which checkpoints stay: the newest `keep_last` complete ones, of the others those at multiples of
// `keep_every_steps` reduced to their weights. Damaged ones are never counted, never touched; foreign entries
// neither.
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace osdn::checkpoint {

class Retention {
 public:
  /// `keep_last` 0 keeps every checkpoint whole; `keep_every_steps` 0 keeps no weights of older ones.
  Retention(std::string directory, int64_t keep_last, int64_t keep_every_steps);

  /// Applies the rule after the checkpoint `newest` (a directory name) was completed by this process;
  /// `newest` itself always stays. A kill at any point leaves every checkpoint complete or absent. Throws
  /// Error when a file can't be removed.
  void apply(const std::string& newest);

 private:
  bool is_intact(const std::string& name);
  std::string directory_;
  int64_t keep_last_;
  int64_t keep_every_steps_;
  std::set<std::string> verified_;  // intact by full digest, or written by this process
};

/// Step directories with everything that a resume needs, by manifest and sizes; their content is not read.
int64_t num_checkpoints(const std::string& checkpoints_directory);

/// Turns a complete checkpoint into one of weights only: its manifest first, in one rename, then the moments
/// go.
void reduce_to_weights(const std::string& directory);

/// Moves a checkpoint out of its name in one rename, then removes it.
void remove_checkpoint(const std::string& checkpoints_directory, const std::string& name, int64_t step);

}  // namespace osdn::checkpoint
