// What import and export share: logits of weights that lie in memory, and their comparison.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "tensor/fwd.h"

namespace osdn::apps {

/// Logits [B, T, V] fp32 of `ids` [B, T] int64, B independent sequences, computed on the CPU in fp32 from
/// fp32 weights by name. Throws DataError naming the tensor when names or shapes are not the model's.
at::Tensor logits_of(const std::string& origin, const config::Model& model,
                     const std::vector<checkpoint::NamedTensor>& weights, const at::Tensor& ids);

/// Two sequences of token ids [2, 96] that are the same for every model of this vocabulary; longer than a
/// chunk of the delta rule.
at::Tensor fixed_input(int64_t vocab_size);

/// ||actual - expected|| / ||expected|| in float64; infinity when something is not finite.
double relative_rms(const at::Tensor& actual, const at::Tensor& expected);

/// Last component and parent of a path that a command is about to create; UserError when it exists.
std::string absolute_new_path(const char* command, const std::string& path);

/// A directory beside its final name, removed unless published.
class StagedDirectory {
 public:
  explicit StagedDirectory(std::string target);
  ~StagedDirectory();
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;

  const std::string& path() const { return path_; }
  /// Fsyncs the directory and gives it its final name in one rename.
  void publish();

 private:
  std::string target_;
  std::string path_;
  bool published_ = false;
};

}  // namespace osdn::apps
