#include "apps/export.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/exchange.h"
#include "apps/exchange_directory.h"
#include "apps/export_readme.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/fla_config.h"
#include "checkpoint/model_files.h"
#include "config/yaml.h"
#include "data/tokenizer.h"
#include "model/lm.h"
#include "tensor/torch.h"
#include "train/snapshot.h"

namespace osdn::apps {
namespace export_detail {

namespace fs = std::filesystem;

// config.json, README.md, tokenizer, headers.
constexpr uint64_t kSlackBytes = uint64_t{64} << 20;

struct Options {
  std::string checkpoint;
  std::string output;
  std::string format = "fla";
  std::string dtype = "float32";
  std::string max_shard_size = "5GB";
  std::optional<std::string> tokenizer;
};

struct Source {
  checkpoint::Loaded loaded;
  config::Config config;
  std::optional<data::Tokenizer> tokenizer;
  const config::Model& model() const { return config.model; }
};

/// How far rounding may move the logits of a model that bears it. In float32 only retention_bias is rounded,
/// to the fp32 of the format's buffer.
double allowed_difference(const std::string& dtype) {
  if (dtype == "float32") return 1e-5;
  return dtype == "float16" ? 1e-2 : 5e-2;
}

at::ScalarType scalar_type(const std::string& dtype) {
  if (dtype == "bfloat16") return at::kBFloat16;
  return dtype == "float16" ? at::kHalf : at::kFloat;
}

/// "5GB", "500MB", "2GiB" or bytes; decimal units as the peers count them.
uint64_t parse_size(const std::string& text) {
  static const std::map<std::string, uint64_t> units = {{"", 1},
                                                        {"B", 1},
                                                        {"KB", 1000},
                                                        {"MB", 1000000},
                                                        {"GB", 1000000000},
                                                        {"KIB", 1ull << 10},
                                                        {"MIB", 1ull << 20},
                                                        {"GIB", 1ull << 30}};
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  std::string unit = text.substr(digits);
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::toupper(c); });
  const auto found = units.find(unit);
  const bool in_range = digits > 0 && digits <= 12 && found != units.end();
  const uint64_t count = in_range ? std::stoull(text.substr(0, digits)) : 0;
  if (count == 0 || count > UINT64_MAX / 2 / found->second)
    throw UserError("export: --max-shard-size: expected a size such as 5GB or 500MB, got \"{}\"", text);
  return count * found->second;
}

std::optional<data::Tokenizer> find_tokenizer(const Options& options, const config::Config& config,
                                              const checkpoint::Loaded& loaded) {
  const std::optional<std::string>& path = options.tokenizer ? options.tokenizer : config.data.tokenizer;
  if (!path) return std::nullopt;
  if (!fs::exists(*path))
    throw UserError("export: the tokenizer {} does not exist; pass --tokenizer tokenizer.model", *path);
  std::optional<data::Tokenizer> tokenizer = data::Tokenizer::load(*path);
  const std::string trained_with = loaded.snapshot.state.value("tokenizer_digest", "");
  if (!trained_with.empty() && tokenizer->digest() != trained_with)
    throw UserError(
        "export: the tokenizer {} has digest {}, the model was trained with the one of digest {}; pass the "
        "right "
        "one with --tokenizer",
        *path, tokenizer->digest(), trained_with);
  if (tokenizer->vocab_size() > *config.model.vocab_size)
    throw UserError("export: the tokenizer {} has {} pieces, the model a vocabulary of {}; pass --tokenizer",
                    *path, tokenizer->vocab_size(), *config.model.vocab_size);
  return tokenizer;
}

Source open_source(const Options& options) {
  Source source;
  source.loaded = train::open_checkpoint(options.checkpoint);
  source.config = config::load_text(source.loaded.snapshot.state.value("config", ""),
                                    source.loaded.directory + "/state.json", {});
  source.tokenizer = find_tokenizer(options, source.config, source.loaded);
  return source;
}

std::optional<int64_t> non_negative(int64_t id) { return id < 0 ? std::nullopt : std::optional(id); }

/// From the tokenizer; without one from what an imported model said.
checkpoint::TokenIds token_ids(const Source& source) {
  if (source.tokenizer)
    return {.bos = non_negative(source.tokenizer->bos_id()),
            .eos = non_negative(source.tokenizer->eos_id()),
            .pad = non_negative(source.tokenizer->pad_id())};
  const Json origin = source.loaded.snapshot.state.value("source", Json::object());
  const auto id = [&](const char* key) {
    return origin.contains(key) && origin[key].is_number_integer() ? std::optional(origin[key].get<int64_t>())
                                                                   : std::nullopt;
  };
  return {.bos = id("bos_token_id"), .eos = id("eos_token_id"), .pad = id("pad_token_id")};
}

/// What goes into the files: the masters, rounded where the dtype says so.
checkpoint::TensorList tensors_to_write(const Source& source, const std::string& dtype) {
  std::map<std::string, bool> full_precision;
  for (const ParameterSpec& spec : model::parameter_specs(source.model(), *source.model().vocab_size))
    full_precision[spec.name] = spec.full_precision || checkpoint::stays_float32(spec.name);
  const std::optional<config::Osdn>& osdn = source.model().osdn;
  checkpoint::TensorList tensors;
  for (const auto& [name, value] : source.loaded.snapshot.weights) {
    at::Tensor tensor = value;
    if (osdn && osdn->clamp_initial_scale && name.find(".attn.initial_scale") != std::string::npos)
      tensor = tensor.clamp(osdn->box[0], osdn->box[1]);
    if (!full_precision[name]) tensor = tensor.to(scalar_type(dtype));
    if (!at::isfinite(tensor).all().item<bool>())
      throw DataError("export: tensor {} holds NaN or infinity{}", name,
                      dtype == "float32" ? "" : fmt::format(" in {}; float32 may hold it", dtype));
    tensors.emplace_back(name, tensor);
  }
  checkpoint::add_retention_buffers(source.model(), &tensors);
  return tensors;
}

void check_same_bits(const ExchangeDirectory& again, checkpoint::TensorList written) {
  const std::map<std::string, at::Tensor> expected(written.begin(), written.end());
  for (const auto& [name, value] : again.weights)
    OSDN_ASSERT(at::equal(value, expected.at(name).to(at::kFloat)),
                "export: tensor {} reads back differently", name);
}

/// Reads the directory as a stranger's and compares every bit and the logits with the source. Both weights in
/// memory, what was written and the source's, are released on the way: they are the largest thing here.
std::string verify(const std::string& directory, const Json& config,
                   const checkpoint::FlaConfigOptions& options, checkpoint::TensorList written,
                   Source* source) {
  const at::Tensor ids = fixed_input(*source->model().vocab_size);
  const at::Tensor before =
      logits_of(source->loaded.directory, source->model(), source->loaded.snapshot.weights, ids);
  source->loaded.snapshot.weights.clear();
  const ExchangeDirectory again = read_exchange_directory(directory, {});
  OSDN_ASSERT(checkpoint::fla_config(again.fla.model, options) == config,
              "export: config.json means another model when it is read again");
  check_same_bits(again, std::move(written));
  const double error = relative_rms(logits_of(directory, again.fla.model, again.weights, ids), before);
  const double allowed = allowed_difference(options.dtype);
  const std::string found = fmt::format(
      "{} tokens of input give logits with a relative RMS difference of {:.2e} to the checkpoint's (at most "
      "{:.0e})",
      ids.numel(), error, allowed);
  OSDN_ASSERT(error <= allowed || options.dtype != "float32", "export: {}", found);
  if (!(error <= allowed))
    throw UserError("export: {}: this model does not bear {}, use --dtype float32; nothing was written",
                    found, options.dtype);
  return found;
}

Json generation_config(const checkpoint::TokenIds& ids) {
  Json json = {{"_from_model_config", true}};
  if (ids.bos) json["bos_token_id"] = *ids.bos;
  if (ids.eos) json["eos_token_id"] = *ids.eos;
  if (ids.pad) json["pad_token_id"] = *ids.pad;
  return json;
}

void check_space(const std::string& target, const checkpoint::TensorList& tensors) {
  uint64_t needed = kSlackBytes;
  for (const auto& [name, tensor] : tensors) needed += tensor.nbytes();
  const uint64_t available = free_space_bytes(fs::path(target).parent_path().string());
  if (available < needed)
    throw EnvironmentError("{}: not enough space for the export: needed {} bytes, available {}", target,
                           needed, available);
}

void run_export(const Options& options) {
  const std::string target = absolute_new_path("export", options.output);
  const uint64_t max_shard_bytes = parse_size(options.max_shard_size);
  Source source = open_source(options);
  if (!source.tokenizer) log::warning("export: the run names no tokenizer; the directory will have none");
  checkpoint::FlaConfigOptions config_options{.ids = token_ids(source),
                                              .dtype = options.dtype,
                                              .max_position_embeddings = source.config.data.sequence_length};
  const Json config = checkpoint::fla_config(source.model(), config_options);
  checkpoint::TensorList tensors = tensors_to_write(source, options.dtype);
  check_space(target, tensors);

  StagedDirectory staged(target);
  const std::vector<std::string> files =
      checkpoint::write_model_files(staged.path(), tensors, max_shard_bytes);
  const auto put = [&](const char* name, const std::string& text) {
    atomic_write(staged.path() + "/" + name, text);
  };
  put("config.json", config.dump(2) + "\n");
  put("generation_config.json", generation_config(config_options.ids).dump(2) + "\n");
  if (source.tokenizer) put("tokenizer.model", source.tokenizer->model_bytes());
  ExportDescription description{
      .model_type = config["model_type"].get<std::string>(),
      .source = source.loaded.directory,
      .step = source.loaded.snapshot.step,
      .dtype = options.dtype,
      .verification = verify(staged.path(), config, config_options, std::move(tensors), &source),
      .notes = checkpoint::not_carried(source.model())};
  put("README.md",
      export_readme(source.model(), source.tokenizer ? &*source.tokenizer : nullptr, description));
  staged.publish();
  for (const std::string& note : description.notes) log::info("not carried: {}", note);
  fmt::print("{}: {}, {} in {} {}\nverified: {}\n", target, config["model_type"].get<std::string>(),
             options.dtype, files.size(), files.size() == 1 ? "file" : "files (shards and index)",
             description.verification);
}

}  // namespace export_detail

void add_export(CLI::App& root) {
  const auto options = std::make_shared<export_detail::Options>();
  CLI::App* command =
      root.add_subcommand("export", "Write a checkpoint as a flash-linear-attention or OSDN model directory");
  command->add_option("CHECKPOINT", options->checkpoint, "A run directory, or a checkpoint of one")
      ->required();
  command->add_option("--output", options->output, "The directory to create")->required();
  command
      ->add_option("--format", options->format,
                   "fla: config.json and safetensors, as transformers reads them")
      ->check(CLI::IsMember({"fla"}))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "float32 is exact")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->capture_default_str();
  command
      ->add_option("--max-shard-size", options->max_shard_size,
                   "Larger models are written as shards with an index")
      ->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer, "Replaces the path stored with the run");
  command->footer(
      "Example:\n  osdn export runs/quickstart-plain --output exported --dtype bfloat16\n"
      "The directory is read again and its logits compared before it gets its name.");
  command->callback([options] { export_detail::run_export(*options); });
}

}  // namespace osdn::apps
