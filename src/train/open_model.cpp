#include "train/open_model.h"

#include "base/error.h"
#include "config/yaml.h"
#include "tensor/device.h"
#include "tensor/torch.h"
#include "train/setup.h"
#include "train/snapshot.h"

namespace osdn::train {
namespace open_model_detail {

/// A tokenizer that is not the checkpoint's would give its tokens another meaning.
void check_tokenizer_of(const data::Tokenizer& tokenizer, const std::string& path,
                        const checkpoint::Loaded& loaded, int64_t vocab_size) {
  if (tokenizer.vocab_size() > vocab_size)
    throw UserError("{}: expected a tokenizer of at most {} pieces, the vocabulary of {}, got {} pieces",
                    path, vocab_size, loaded.directory, tokenizer.vocab_size());
  const std::string expected = loaded.snapshot.state.value("tokenizer_digest", "");
  if (!expected.empty() && expected != tokenizer.digest())
    throw UserError(
        "{}: {} was trained with the tokenizer of digest {}, this one has digest {}; pass --tokenizer with "
        "the "
        "tokenizer.model that lies beside the run's shards",
        path, loaded.directory, expected, tokenizer.digest());
}

}  // namespace open_model_detail

OpenModel open_model(const std::string& path, const OpenOptions& options) {
  make_deterministic();
  const checkpoint::Loaded loaded = open_checkpoint(path);
  OpenModel open;
  open.config =
      config::load_text(loaded.snapshot.state.value("config", ""), loaded.directory + "/state.json", {});
  open.step = loaded.snapshot.step;
  open.directory = loaded.directory;
  open.device = choose_device(options.device);
  const int64_t vocab_size = open.config.model.vocab_size.value();
  open.precision = options.precision;
  if (open.precision == config::Precision::kAuto)
    open.precision = open.device.is_cuda() ? open.config.train.precision : config::Precision::kFloat32;
  if (open.precision == config::Precision::kAuto) open.precision = config::Precision::kBfloat16;
  const at::ScalarType compute = compute_dtype(open.precision);
  open.arena = std::make_unique<optim::ParameterArena>(
      model::parameter_specs(open.config.model, vocab_size),
      optim::ParameterArena::Options{.device = open.device, .compute = compute, .training = false});
  restore_weights(loaded, *open.arena);
  open.model = std::make_unique<model::LanguageModel>(open.config.model, vocab_size, open.arena->source());
  if (options.tokenizer) open.config.data.tokenizer = options.tokenizer;
  open.tokenizer = open_tokenizer(open.config.data);
  if (open.tokenizer)
    open_model_detail::check_tokenizer_of(*open.tokenizer, *open.config.data.tokenizer, loaded, vocab_size);
  return open;
}

}  // namespace osdn::train
