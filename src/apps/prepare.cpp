#include "apps/prepare.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/prepare_progress.h"
#include "base/error.h"
#include "base/log.h"
#include "config/yaml.h"
#include "data/builtin_corpus.h"
#include "data/prepare.h"

namespace osdn::apps {
namespace prepare_detail {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  config::Prepare settings;
  std::string tokenizer_type = "bpe";
  std::string tokenizer_model;
  uint64_t builtin_seed = data::kBuiltinSeed;
  bool overwrite = false;
};

constexpr const char* kHelp = R"(Example:
  osdn prepare configs/quickstart.yaml
  osdn prepare --builtin --megabytes 4 --vocab-size 2000 --validation-fraction 0.05 --output shards
  osdn prepare --input 'corpus/*.jsonl' --text-key text --vocab-size 32000 --output shards
  osdn prepare --input 'books/*.txt' --tokenizer tokenizer.model --output shards
  osdn prepare --input 'data/*.parquet' --text-key text --on-error skip --output shards

Documents: a .txt file is one document (a byte order mark at its start is dropped, CRLF and CR become
LF); a .jsonl file has one document a line and a .parquet file one a row, their text kept exactly; .gz
and .zst are unpacked on the way. Documents without visible text are dropped and counted. Invalid UTF-8,
broken JSON and records without text are refused by file and line, or skipped and counted with
--on-error skip. A document goes to validation by the hash of its text. Details:
docs/howto/prepare_your_data.md.
The output holds train-*.h5, valid-*.h5, tokenizer.model and prepare.json, all or none of them. Asked
again for the same, it does nothing; interrupted, it continues, with any number of workers; a folder with
other shards is only replaced with --overwrite.)";

std::string describe(const char* name, const data::PreparedSplit& split) {
  return fmt::format("{:<12}{:>10} documents {:>14} tokens {:>14} bytes {:>6} shard{}\n", name,
                     split.documents, split.tokens, split.bytes, split.shards.size(),
                     split.shards.size() == 1 ? "" : "s");
}

void print(const data::PrepareReport& report, const std::string& output) {
  const int64_t tokens = report.train.tokens + report.validation.tokens;
  const int64_t bytes = report.train.bytes + report.validation.bytes;
  std::string text = describe("train", report.train) + describe("validation", report.validation);
  text += fmt::format("{:<12}{:>10} pieces, {:.3f} bytes a token\n", "tokenizer", report.vocab_size,
                      tokens > 0 ? static_cast<double>(bytes) / static_cast<double>(tokens) : 0.0);
  text += fmt::format("{:<12}{:>10} documents without text\n", "dropped", report.dropped_documents);
  text += fmt::format("{:<12}{:>10} documents decoded again, {} came back changed\n", "checked",
                      report.checked_documents, report.changed_documents);
  for (size_t i = 0; i < data::kRecordFaultNames.size(); ++i)
    if (const int64_t count = report.skipped.counts[i]; count > 0)
      text += fmt::format("{:<12}{:>10} records: {}\n", "skipped", count, data::kRecordFaultNames[i]);
  text += fmt::format("{:<12}{} ({})\n", "folder", output,
                      report.already_done ? "already prepared" : fmt::format("{:.1f} s", report.seconds));
  std::fputs(text.c_str(), stdout);
}

void run(const Options& options) {
  config::Prepare settings = options.settings;
  if (!options.config.empty()) {
    settings = config::load(options.config, options.overrides).prepare;
    if (options.settings.workers > 0) settings.workers = options.settings.workers;
  } else {
    if (!options.overrides.empty()) throw UserError("prepare: --set needs a configuration file to override");
    settings.tokenizer.type =
        options.tokenizer_type == "bpe" ? config::TokenizerType::kBpe : config::TokenizerType::kUnigram;
    if (!options.tokenizer_model.empty()) settings.tokenizer_model = options.tokenizer_model;
  }
  print(data::prepare(settings, {.overwrite = options.overwrite,
                                 .builtin_seed = options.builtin_seed,
                                 .progress = show_prepare_progress()}),
        settings.output);
}

}  // namespace prepare_detail

void add_prepare(CLI::App& root) {
  const auto options = std::make_shared<prepare_detail::Options>();
  config::Prepare& settings = options->settings;
  CLI::App* command =
      root.add_subcommand("prepare", "Turn text into token shards, and train a tokenizer for it");
  CLI::Option* config =
      command->add_option("CONFIG", options->config, "YAML file whose `prepare` section to follow");
  command->add_option("--set", options->overrides, "Override a key: --set prepare.workers=4 (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--workers", settings.workers,
                      "Threads; 0: all cores. The result does not depend on it");
  command->add_option("--seed", options->builtin_seed, "Seed of the built-in corpus")->capture_default_str();
  command->add_flag("--overwrite", options->overwrite,
                    "Replace shards of other settings or inputs in the folder");
  const auto direct = [&](CLI::Option* option) { return option->excludes(config); };
  CLI::Option* input = direct(command->add_option(
      "--input", settings.input, "Globs of .txt, .jsonl and .parquet files, each also .gz or .zst"));
  direct(command->add_flag("--builtin", settings.builtin, "The built-in corpus instead of files"))
      ->excludes(input);
  direct(command->add_option("--megabytes", settings.builtin_megabytes, "Size of the built-in corpus"))
      ->capture_default_str();
  direct(command->add_option("--output", settings.output, "Folder for shards and tokenizer"))
      ->capture_default_str();
  direct(command->add_option("--format", settings.format, "Format of the input files"))
      ->check(CLI::IsMember({"auto", "txt", "jsonl", "parquet"}))
      ->capture_default_str();
  direct(command->add_option("--text-key", settings.text_key,
                             "JSON field or Parquet column of the text; a.b: b inside a"))
      ->capture_default_str();
  direct(command->add_option("--on-error", settings.on_error,
                             "stop, or skip and count: records with invalid UTF-8, broken JSON, no text"))
      ->check(CLI::IsMember({"stop", "skip"}))
      ->capture_default_str();
  direct(command->add_option("--max-record-bytes", settings.max_record_bytes,
                             "Longest line, row or text file, unpacked"))
      ->capture_default_str();
  direct(command->add_option("--validation-fraction", settings.validation_fraction,
                             "Share of validation documents"))
      ->capture_default_str();
  direct(command->add_flag("--add-eos", settings.add_eos, "End each document with eos as well"));
  direct(command->add_option("--shard-tokens", settings.shard_tokens, "Tokens a shard, at most 2^28"))
      ->capture_default_str();
  CLI::Option* model = direct(command->add_option("--tokenizer", options->tokenizer_model,
                                                  "A sentencepiece model; else one is trained"));
  direct(
      command->add_option("--vocab-size", settings.tokenizer.vocab_size, "Pieces of the trained tokenizer"))
      ->excludes(model)
      ->capture_default_str();
  direct(command->add_option("--tokenizer-type", options->tokenizer_type, "Kind of the trained tokenizer"))
      ->check(CLI::IsMember({"bpe", "unigram"}))
      ->excludes(model)
      ->capture_default_str();
  command->footer(prepare_detail::kHelp);
  command->callback([options] { prepare_detail::run(*options); });
}

}  // namespace osdn::apps
