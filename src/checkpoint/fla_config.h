// config.json of the directories that models are exchanged in (docs/formats/exchange.md): delta_net,
// gated_deltanet, kda and transformer of flash-linear-attention; osla_delta_net, os_gated_deltanet and os_kda
// of the OSDN authors. Every key is known by name: read, demanded to have the one value that this program
// computes with, or listed as harmless; anything else is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "config/config.h"

namespace osdn::checkpoint {

/// Ids of the tokenizer's control pieces; absent: the model has none.
struct TokenIds {
  std::optional<int64_t> bos;
  std::optional<int64_t> eos;
  std::optional<int64_t> pad;
};

struct FlaModel {
  config::Model model;     // vocab_size is set; no preset
  std::string model_type;  // as in the file
  TokenIds ids;
  std::string dtype;                       // torch_dtype or dtype, "" when neither is given
  int64_t max_position_embeddings = 2048;  // no part of the model: by custom the context it was trained with
};

/// `path` names the file in messages. `ignored_keys` are unknown keys that the caller vouches for. UserError
/// for what the user can settle (unknown key, unsupported value, wrong type), DataError when the text is no
/// JSON object.
FlaModel parse_fla_config(const std::string& path, const std::string& text,
                          const std::vector<std::string>& ignored_keys);

/// Keys that parse_fla_config passes over, with the reason: one table for code, tests and documentation.
struct HarmlessKey {
  const char* key;
  const char* reason;
};
const std::vector<HarmlessKey>& harmless_fla_keys();

struct FlaConfigOptions {
  TokenIds ids;
  std::string dtype;  // float32 | bfloat16 | float16
  int64_t max_position_embeddings = 2048;
};

/// The config.json with which the format's own code builds this model. UserError naming the first key of
/// `model` that the format has no place for.
Json fla_config(const config::Model& model, const FlaConfigOptions& options);

/// The authors' constant retention is not only a key but a buffer in the file. Takes it out of the tensors
/// and sets model.osdn.retention_bias by it; DataError when layers or heads differ.
void take_retention_buffers(const std::string& directory, TensorList* tensors, config::Model* model);
/// The other way: appends those buffers where the model has constant retention.
void add_retention_buffers(const config::Model& model, TensorList* tensors);

/// What of `model` the format does not carry and does not need for the same logits, in words.
std::vector<std::string> not_carried(const config::Model& model);

/// Parameters that stay float32 whatever dtype a file has: decay rates, the preconditioner's start and gate.
bool stays_float32(const std::string& name);

}  // namespace osdn::checkpoint
