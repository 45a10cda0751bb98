#include "data/detail/prepare_request.h"

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "data/shard.h"
#include "data/train_tokenizer.h"

namespace osdn::data::detail {

void check_settings(const config::Prepare& settings) {
  if (settings.builtin == !settings.input.empty())
    throw UserError("prepare: expected either input files or the built-in corpus, got {}",
                    settings.builtin ? "both (remove prepare.input or prepare.builtin)"
                                     : "neither (set prepare.input or prepare.builtin)");
  if (settings.output.empty()) throw UserError("prepare.output: expected a folder, got an empty name");
  if (!(settings.validation_fraction >= 0) || settings.validation_fraction >= 1)
    throw UserError("prepare.validation_fraction: expected 0 or more and less than 1, got {}",
                    settings.validation_fraction);
  if (settings.shard_tokens < 1 || settings.shard_tokens > kMaxShardTokens)
    throw UserError("prepare.shard_tokens: expected 1 to {}, got {}", kMaxShardTokens, settings.shard_tokens);
  if (settings.workers < 0 || settings.workers > 4096)
    throw UserError("prepare.workers: expected 0 (all cores) to 4096, got {}", settings.workers);
  // Told before hours of reading; what is too large only the text can tell.
  if (!settings.tokenizer_model) check_vocabulary_size(settings.tokenizer.vocab_size);
  if (settings.builtin && (settings.builtin_megabytes < 1 || settings.builtin_megabytes > 1'000'000))
    throw UserError("prepare.builtin_megabytes: expected 1 to 1000000, got {}", settings.builtin_megabytes);
}

Json describe(const config::Prepare& settings, uint64_t builtin_seed) {
  Json json;
  if (settings.builtin) {
    json["builtin_megabytes"] = settings.builtin_megabytes;
    json["builtin_seed"] = builtin_seed;
  } else {
    json["format"] = settings.format;
    json["text_key"] = settings.text_key;
    json["on_error"] = settings.on_error;
    json["max_record_bytes"] = settings.max_record_bytes;
  }
  json["validation_fraction"] = settings.validation_fraction;
  json["add_eos"] = settings.add_eos;
  json["shard_tokens"] = settings.shard_tokens;
  if (settings.tokenizer_model) {
    json["tokenizer_model"] = digest(read_named_file(*settings.tokenizer_model)).hex();
  } else {
    json["tokenizer_type"] = settings.tokenizer.type == config::TokenizerType::kBpe ? "bpe" : "unigram";
    json["vocab_size"] = settings.tokenizer.vocab_size;
  }
  return json;
}

Json describe(const std::vector<InputFile>& files) {
  Json json = Json::array();
  for (const InputFile& file : files)
    json.push_back({{"path", file.path}, {"bytes", file.size_bytes}, {"modified_ns", file.modified_ns}});
  return json;
}

std::string first_difference(const Json& before, const Json& after) {
  for (const auto& [key, value] : after.items())
    if (!before.contains(key) || before.at(key) != value)
      return fmt::format("{}: {} -> {}", key, before.contains(key) ? before.at(key).dump() : "absent",
                         value.dump());
  for (const auto& [key, value] : before.items())
    if (!after.contains(key)) return fmt::format("{}: {} -> absent", key, value.dump());
  return "the input files";
}

}  // namespace osdn::data::detail
