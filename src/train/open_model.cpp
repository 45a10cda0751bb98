#include "train/open_model.h"

#include "base/error.h"
#include "config/yaml.h"
#include "tensor/device.h"
#include "tensor/torch.h"
#include "train/setup.h"
#include "train/snapshot.h"

namespace osdn::train {

OpenModel open_model(const std::string& path, config::Device device,
                     const std::optional<std::string>& tokenizer) {
  make_deterministic();
  const checkpoint::Loaded loaded = open_checkpoint(path);
  OpenModel open;
  open.config =
      config::load_text(loaded.snapshot.state.value("config", ""), loaded.directory + "/state.json", {});
  open.step = loaded.snapshot.step;
  open.directory = loaded.directory;
  open.device = choose_device(device);
  const int64_t vocab_size = open.config.model.vocab_size.value();
  // On a GPU in the precision of the run, on a CPU in float32.
  const at::ScalarType compute =
      open.device.is_cuda() ? compute_dtype(open.config.train.precision) : at::kFloat;
  open.arena = std::make_unique<optim::ParameterArena>(
      model::parameter_specs(open.config.model, vocab_size),
      optim::ParameterArena::Options{.device = open.device, .compute = compute, .training = false});
  restore_weights(loaded, *open.arena);
  open.model = std::make_unique<model::LanguageModel>(open.config.model, vocab_size, open.arena->source());
  if (tokenizer) open.config.data.tokenizer = tokenizer;
  open.tokenizer = open_tokenizer(open.config.data);
  return open;
}

}  // namespace osdn::train
