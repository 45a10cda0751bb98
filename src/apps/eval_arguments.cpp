#include "apps/eval_arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/detail/option_checks.h"
#include "base/error.h"
#include "base/fs.h"

namespace osdn::apps {
namespace eval_arguments_detail {

constexpr const char* kSuites = "perplexity";

bool is_shard(const std::string& path) {
  return path.size() > 3 && path.compare(path.size() - 3, 3, ".h5") == 0;
}

/// Of every file that the globs match; a glob that matches nothing counts by its own name and fails later.
bool are_shards(const std::vector<std::string>& globs) {
  size_t num_shards = 0;
  size_t num_files = 0;
  for (const std::string& glob : globs) {
    std::vector<std::string> paths = glob_paths(glob);
    if (paths.empty()) paths = {glob};
    num_files += paths.size();
    num_shards += static_cast<size_t>(std::count_if(paths.begin(), paths.end(), is_shard));
  }
  if (num_shards > 0 && num_shards < num_files)
    throw UserError(
        "--data: expected either shards (.h5) or text files, got {} of {} files that are shards, in a list "
        "that begins "
        "with {}",
        num_shards, num_files, globs.front());
  return num_shards > 0;
}

int64_t parse_window(const std::string& text) {
  if (text == "none") return 0;
  int64_t window = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9' || window > (int64_t{1} << 40))
      throw UserError("--window: expected a number of tokens or none, got \"{}\"", text);
    window = 10 * window + (digit - '0');
  }
  if (window < 1) throw UserError("--window: expected at least 1 token or none, got \"{}\"", text);
  return window;
}

}  // namespace eval_arguments_detail

void add_eval_arguments(CLI::App& command, EvalArguments* arguments) {
  add_model_arguments(command, &arguments->model);
  command
      .add_option("--suite", arguments->suite,
                  fmt::format("What to evaluate: {}", eval_arguments_detail::kSuites))
      ->required();
  command
      .add_option("--data", arguments->data,
                  "Glob of shards (.h5) or text files (repeatable); default: the run's validation shards")
      ->allow_extra_args(false);
  command
      .add_option("--window", arguments->window,
                  "Context in tokens, or none: whole documents with the state carried")
      ->capture_default_str();
  command.add_option("--stride", arguments->stride,
                     "Targets newly scored a window; default: the window (disjoint blocks)");
  command
      .add_option("--tokens-at-once", arguments->tokens_at_once,
                  "Tokens run together; changes no result. Default: 4096 on a CPU, 16384 on a GPU")
      ->check(above_zero());
  command.add_option("--max-documents", arguments->max_documents, "Only the first ones")->check(above_zero());
  command.add_option("--text-key", arguments->text_key, "JSON field of the text in .jsonl files")
      ->capture_default_str();
  command
      .add_option("--on-error", arguments->on_error, "Broken records of text files: stop, or skip and count")
      ->check(CLI::IsMember({"stop", "skip"}))
      ->capture_default_str();
  command.add_option("--json", arguments->json,
                     "Write the result to this file as well; -: to stdout instead");
  command.add_flag("--per-document", arguments->per_document, "Every document's sums in the JSON");
}

eval::PerplexityOptions perplexity_options(const EvalArguments& arguments) {
  if (arguments.suite != eval_arguments_detail::kSuites)
    throw UserError("--suite: expected one of the suites there are: {}; got \"{}\"",
                    eval_arguments_detail::kSuites, arguments.suite);
  eval::PerplexityOptions options{.window = eval_arguments_detail::parse_window(arguments.window)};
  if (options.window == 0 && arguments.stride)
    throw UserError("--stride: expected a --window to move, got none");
  options.stride = arguments.stride.value_or(options.window);
  return options;
}

std::unique_ptr<eval::DocumentSource> open_documents(const EvalArguments& arguments,
                                                     const train::OpenModel& open) {
  const std::vector<std::string> globs =
      arguments.data.empty() ? open.config.data.validation : arguments.data;
  if (globs.empty())
    throw UserError("eval: {} names no validation shards; pass --data GLOB of shards or text files",
                    open.directory);
  const data::Tokenizer* tokenizer = open.tokenizer ? &*open.tokenizer : nullptr;
  if (eval_arguments_detail::are_shards(globs))
    return eval::open_shards(globs, tokenizer, open.config.model.vocab_size.value());
  if (tokenizer == nullptr)
    throw UserError("eval: {} names no tokenizer, which text needs; pass --tokenizer tokenizer.model",
                    open.directory);
  config::Prepare settings;
  settings.input = globs;
  settings.text_key = arguments.text_key;
  settings.on_error = arguments.on_error;
  settings.add_eos = open.config.prepare.add_eos;
  return eval::open_texts(settings, *tokenizer);
}

}  // namespace osdn::apps
