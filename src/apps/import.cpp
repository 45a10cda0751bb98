#include "apps/import.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/detail/option_checks.h"
#include "apps/exchange.h"
#include "apps/exchange_directory.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"
#include "config/yaml.h"
#include "data/tokenizer.h"
#include "tensor/torch.h"
#include "train/snapshot.h"
#include "train/state.h"

namespace osdn::apps {
namespace import_detail {

namespace fs = std::filesystem;

constexpr const char* kTokenizerFile = "tokenizer.model";

struct Options {
  std::string directory;
  std::string output;
  std::optional<std::string> tokenizer;
  std::optional<std::string> verify;
  double tolerance = 1e-4;
  ExchangeReadOptions read;
};

/// The sentencepiece model that goes along: the one asked for, or the directory's own.
std::optional<data::Tokenizer> find_tokenizer(const Options& options) {
  if (options.tokenizer) return data::Tokenizer::load(*options.tokenizer);
  const std::string own = options.directory + "/" + kTokenizerFile;
  if (fs::exists(own)) return data::Tokenizer::load(own);
  if (fs::exists(options.directory + "/tokenizer.json"))
    log::warning(
        "{}: tokenizer.json is not read; pass --tokenizer tokenizer.model (the sentencepiece model) to "
        "evaluate "
        "and generate",
        options.directory);
  return std::nullopt;
}

void check_id(const char* name, const std::optional<int64_t>& stated, int64_t own) {
  if (stated && *stated != own)
    log::warning("config.json says {} {}, the tokenizer {}; the tokenizer's is used", name, *stated,
                 own < 0 ? std::string("has none") : std::to_string(own));
}

void check_tokenizer(const data::Tokenizer& tokenizer, const checkpoint::FlaModel& fla) {
  if (tokenizer.vocab_size() > *fla.model.vocab_size)
    throw UserError(
        "import: the tokenizer has {} pieces, the model a vocabulary of {}; it belongs to another model",
        tokenizer.vocab_size(), *fla.model.vocab_size);
  check_id("bos_token_id", fla.ids.bos, tokenizer.bos_id());
  check_id("eos_token_id", fla.ids.eos, tokenizer.eos_id());
  check_id("pad_token_id", fla.ids.pad, tokenizer.pad_id());
}

/// The configuration of a run that never trained here: the model, everything else at its default.
config::Config run_config(const ExchangeDirectory& source, const std::string& target, bool has_tokenizer) {
  config::Config config;
  config.run.name = fs::path(target).filename().string();
  config.run.directory = fs::path(target).parent_path().string();
  config.model = source.fla.model;
  // What evaluation takes for the context of training; a global batch is whole sequences.
  const int64_t length = source.fla.max_position_embeddings;
  config.data.sequence_length = length;
  config.train.global_batch_tokens = std::max<int64_t>(config.train.global_batch_tokens / length, 1) * length;
  if (has_tokenizer) config.data.tokenizer = target + "/" + kTokenizerFile;
  config.train.precision =
      source.dtype == "bfloat16" ? config::Precision::kBfloat16 : config::Precision::kFloat32;
  return config;
}

Json optional_id(const std::optional<int64_t>& id) { return id ? Json(*id) : Json(nullptr); }

Json describe_source(const Options& options, const ExchangeDirectory& source) {
  Json files = Json::object();
  for (const auto& [name, digest] : source.digests) files[name] = digest;
  return {{"imported_from", fs::absolute(options.directory).lexically_normal().string()},
          {"model_type", source.fla.model_type},
          {"dtype", source.dtype},
          {"xxh3_128", files},
          {"bos_token_id", optional_id(source.fla.ids.bos)},
          {"eos_token_id", optional_id(source.fla.ids.eos)},
          {"pad_token_id", optional_id(source.fla.ids.pad)}};
}

struct Expected {
  at::Tensor ids;     // [B, T] int64
  at::Tensor logits;  // [B, T, V]
};

Expected read_expected(const std::string& path, int64_t vocab_size) {
  std::map<std::string, at::Tensor> tensors;
  for (auto& [name, tensor] : checkpoint::read_safetensors(path).tensors) tensors[name] = tensor;
  const at::Tensor ids = tensors["input_ids"];
  const at::Tensor logits = tensors["logits"];
  if (!ids.defined() || !logits.defined())
    throw UserError("{}: --verify expects tensors input_ids [B, T] and logits [B, T, {}]", path, vocab_size);
  const bool shapes = ids.dim() == 2 && logits.dim() == 3 && logits.size(0) == ids.size(0) &&
                      logits.size(1) == ids.size(1) && logits.size(2) == vocab_size && ids.numel() > 0;
  if (!shapes || !at::isIntegralType(ids.scalar_type(), false) || !at::isFloatingType(logits.scalar_type()))
    throw UserError(
        "{}: --verify expects whole numbers input_ids [B, T] and logits [B, T, {}], got {} {} and {} {}",
        path, vocab_size, c10::toString(ids.scalar_type()), c10::str(ids.sizes()),
        c10::toString(logits.scalar_type()), c10::str(logits.sizes()));
  const at::Tensor wide = ids.to(at::kLong);
  if (wide.min().item<int64_t>() < 0 || wide.max().item<int64_t>() >= vocab_size)
    throw UserError("{}: input_ids: expected ids from 0 to {}, got {} to {}", path, vocab_size - 1,
                    wide.min().item<int64_t>(), wide.max().item<int64_t>());
  return {.ids = wide, .logits = logits};
}

/// From the checkpoint as it lies on the disk, not from what was meant to be written.
std::string verify(const Options& options, const config::Model& model, const std::string& step_directory) {
  const Expected expected = read_expected(*options.verify, *model.vocab_size);
  const checkpoint::Loaded written = train::open_checkpoint(step_directory);
  const double error =
      relative_rms(logits_of(step_directory, model, written.snapshot.weights, expected.ids), expected.logits);
  const std::string found =
      fmt::format("relative RMS difference {:.2e}, allowed {:.0e}", error, options.tolerance);
  if (!(error <= options.tolerance))
    throw DataError("import: logits differ from {}: {}; nothing was written", *options.verify, found);
  return found;
}

void run_import(const Options& options) {
  const std::string target = absolute_new_path("import", options.output);
  const std::optional<data::Tokenizer> tokenizer = find_tokenizer(options);
  ExchangeDirectory source = read_exchange_directory(options.directory, options.read);
  for (const std::string& warning : source.warnings) log::warning("{}", warning);
  if (tokenizer) check_tokenizer(*tokenizer, source.fla);
  if (source.fla.ids.pad)
    log::info(
        "pad_token_id is {}: the source's code froze that row of the embedding; here it is trained like any "
        "other",
        *source.fla.ids.pad);

  const config::Config config = run_config(source, target, tokenizer.has_value());
  checkpoint::Snapshot snapshot;
  snapshot.weights = std::move(source.weights);
  snapshot.state = train::TrainState().to_json();
  snapshot.state["config"] = config::dump(config);
  snapshot.state["source"] = describe_source(options, source);
  if (tokenizer) snapshot.state["tokenizer_digest"] = tokenizer->digest();
  int64_t parameters = 0;
  for (const checkpoint::NamedTensor& weight : snapshot.weights) parameters += weight.value.numel();

  StagedDirectory staged(target);
  config::Checkpoint keep;
  keep.asynchronous = false;
  const std::string checkpoints = staged.path() + "/checkpoints";
  checkpoint::Writer(checkpoints, keep).save(snapshot);
  if (tokenizer) atomic_write(staged.path() + "/" + kTokenizerFile, tokenizer->model_bytes());
  atomic_write(staged.path() + "/config.yaml", config::dump(config));
  std::string verified;
  if (options.verify) verified = verify(options, config.model, checkpoints + "/" + checkpoint::step_name(0));
  staged.publish();
  fmt::print("{}: {}, {} parameters, {} in {}{}\n", target, source.fla.model_type, parameters, source.dtype,
             options.directory, tokenizer ? ", with its tokenizer" : ", without a tokenizer");
  if (options.verify) fmt::print("logits agree with {}: {}\n", *options.verify, verified);
}

}  // namespace import_detail

void add_import(CLI::App& root) {
  const auto options = std::make_shared<import_detail::Options>();
  CLI::App* command = root.add_subcommand(
      "import", "Take over a flash-linear-attention or OSDN model directory (config.json and safetensors)");
  command
      ->add_option("DIR", options->directory, "Directory with config.json and model.safetensors (or shards)")
      ->required();
  command->add_option("--output", options->output, "The run directory to create")->required();
  command->add_option("--tokenizer", options->tokenizer,
                      "Sentencepiece model to carry along (default: DIR/tokenizer.model)");
  command->add_option("--tie-embeddings", options->read.tie_embeddings,
                      "true or false: replaces tie_word_embeddings of config.json");
  command->add_option("--initial-scale", options->read.initial_scale,
                      "Start d0 for files that lack attn.initial_scale");
  command
      ->add_option("--ignore-key", options->read.ignored_keys,
                   "Unknown key of config.json to pass over (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--verify", options->verify,
                      "safetensors file with input_ids [B, T] and logits [B, T, V] that the model must give");
  command
      ->add_option("--verify-tolerance", options->tolerance, "Largest relative RMS difference of the logits")
      ->check(above_zero())
      ->capture_default_str();
  command->footer(
      "Example:\n  osdn import delta_net-1.3B-100B --output runs/delta-net-hub\n"
      "The result is evaluated, inspected and generated from like any run; train on with run.init_from.");
  command->callback([options] { import_detail::run_import(*options); });
}

}  // namespace osdn::apps
