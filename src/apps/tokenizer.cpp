#include "apps/tokenizer.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "apps/prepare_progress.h"
#include "base/error.h"
#include "base/fs.h"
#include "data/prepare.h"
#include "data/tokenizer.h"

namespace osdn::apps {
namespace tokenizer_detail {

struct Options {
  config::Prepare settings;
  std::string type = "bpe";
  std::string model;
  std::string text;
  bool pieces = false;
  std::vector<int32_t> ids;
};

void train(Options* options) {
  options->settings.tokenizer.type =
      options->type == "bpe" ? config::TokenizerType::kBpe : config::TokenizerType::kUnigram;
  if (options->settings.builtin == !options->settings.input.empty())
    throw UserError("tokenizer train: expected either --input or --builtin");
  const data::Tokenizer tokenizer = data::train_on_inputs(
      options->settings, {.overwrite = false, .builtin_seed = 1, .progress = show_prepare_progress()});
  atomic_write(options->model, tokenizer.model_bytes());
  fmt::print("{}: {} pieces, digest {}\n", options->model, tokenizer.vocab_size(), tokenizer.digest());
}

std::string standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

/// A piece as it may be shown: control characters and parts of UTF-8 characters in hexadecimal.
std::string printable(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    const bool hidden = value < 0x20 || value == 0x7F || (bytes.size() == 1 && value >= 0x80);
    text += hidden ? fmt::format("<{:02X}>", value) : std::string(1, byte);
  }
  return text;
}

void encode(const Options& options, bool has_text) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(options.model);
  const std::vector<int32_t> ids = tokenizer.encode(has_text ? options.text : standard_input());
  std::string line;
  for (const int32_t id : ids) {
    if (options.pieces) {
      line += fmt::format("{}\t{}\n", id, printable(tokenizer.piece_bytes(id)));
    } else {
      line += fmt::format("{}{}", line.empty() ? "" : " ", id);
    }
  }
  if (!options.pieces) line += '\n';
  std::fwrite(line.data(), 1, line.size(), stdout);
}

void decode(const Options& options) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(options.model);
  std::vector<int32_t> ids = options.ids;
  if (ids.empty()) {
    for (int32_t id = 0; std::cin >> id;) ids.push_back(id);
    if (!std::cin.eof())
      throw UserError("tokenizer decode: expected ids, got something else after {} of them", ids.size());
  }
  const std::string text = tokenizer.decode(ids);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace tokenizer_detail

void add_tokenizer(CLI::App& root) {
  const auto options = std::make_shared<tokenizer_detail::Options>();
  CLI::App* command = root.add_subcommand("tokenizer", "Train a tokenizer, or use one on text");
  command->require_subcommand(1);
  command->footer(
      "Example:\n  osdn tokenizer train --builtin --vocab-size 2000 --output tokenizer.model\n"
      "  osdn tokenizer encode tokenizer.model --text 'Mara lives in Tolver.'\n"
      "  osdn tokenizer decode tokenizer.model 314 15 92");

  CLI::App* train =
      command->add_subcommand("train", "Train a sentencepiece model that any valid UTF-8 survives");
  train->add_option("--input", options->settings.input,
                    "Globs of .txt, .jsonl and .parquet files, each also .gz or .zst");
  train->add_flag("--builtin", options->settings.builtin, "The built-in corpus instead of files");
  train->add_option("--format", options->settings.format, "Format of the input files")
      ->check(CLI::IsMember({"auto", "txt", "jsonl", "parquet"}))
      ->capture_default_str();
  train->add_option("--text-key", options->settings.text_key, "JSON field or Parquet column of the text")
      ->capture_default_str();
  train
      ->add_option("--on-error", options->settings.on_error, "stop at records that are no text, or skip them")
      ->check(CLI::IsMember({"stop", "skip"}))
      ->capture_default_str();
  train->add_option("--vocab-size", options->settings.tokenizer.vocab_size, "Number of pieces")
      ->capture_default_str();
  train->add_option("--type", options->type, "Kind of model")
      ->check(CLI::IsMember({"bpe", "unigram"}))
      ->capture_default_str();
  train->add_option("--workers", options->settings.workers, "Threads; 0: all cores");
  train->add_option("--output", options->model, "File to write")->required();
  train->footer(
      "Example:\n  osdn tokenizer train --input 'corpus/*.txt' --vocab-size 32000 --output tokenizer.model\n"
      "It learns from a uniform sample of at most 64 MB. Equal input and settings give equal bytes.");
  train->callback([options] { tokenizer_detail::train(options.get()); });

  CLI::App* encode = command->add_subcommand("encode", "Print the ids of a text");
  encode->add_option("MODEL", options->model, "Sentencepiece model")->required();
  CLI::Option* text = encode->add_option("--text", options->text, "The text; standard input when absent");
  encode->add_flag("--pieces", options->pieces, "One line a token: its id and its text");
  encode->footer(
      "Example:\n  osdn tokenizer encode tokenizer.model --text 'Mara lives in Tolver.'\n"
      "  osdn tokenizer encode tokenizer.model < file | osdn tokenizer decode tokenizer.model | cmp - file");
  encode->callback([options, text] { tokenizer_detail::encode(*options, text->count() > 0); });

  CLI::App* decode = command->add_subcommand("decode", "Print the text of ids");
  decode->add_option("MODEL", options->model, "Sentencepiece model")->required();
  decode->add_option("IDS", options->ids, "Ids; from standard input when absent");
  decode->footer("Example:\n  osdn tokenizer decode tokenizer.model 314 15 92");
  decode->callback([options] { tokenizer_detail::decode(*options); });
}

}  // namespace osdn::apps
