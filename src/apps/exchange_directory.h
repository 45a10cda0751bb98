// A model directory in the exchange format, read whole and checked against the model that its config.json
// describes.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/fla_config.h"

namespace osdn::apps {

struct ExchangeReadOptions {
  std::vector<std::string> ignored_keys;  // unknown keys of config.json to pass over
  std::optional<bool> tie_embeddings;     // replaces tie_word_embeddings
  std::optional<double> initial_scale;    // fills tensors initial_scale that the files lack
};

struct ExchangeDirectory {
  checkpoint::FlaModel fla;                      // its model is the one that `weights` belong to
  std::vector<checkpoint::NamedTensor> weights;  // fp32, every parameter of the model
  std::string dtype;                             // of most elements as stored: float32, bfloat16 or float16
  std::vector<std::pair<std::string, std::string>> digests;  // file name and XXH3-128, config.json included
  std::vector<std::string> warnings;                         // what was accepted with loss, in words
};

/// Widening bf16 and fp16 to fp32 is exact. Throws DataError naming tensor and reason where files and
/// config.json disagree, UserError where an option settles it.
ExchangeDirectory read_exchange_directory(const std::string& directory, const ExchangeReadOptions& options);

}  // namespace osdn::apps
