// The arguments of `osdn eval`, and what they name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/model_arguments.h"
#include "eval/document_source.h"
#include "eval/perplexity.h"

namespace osdn::apps {

struct EvalArguments {
  ModelArguments model;
  std::string suite;
  std::vector<std::string> data;
  std::string window = "none";
  std::optional<int64_t> stride;
  std::optional<int64_t> tokens_at_once;
  std::optional<int64_t> max_documents;
  std::string text_key = "text";
  std::string on_error = "stop";
  std::optional<std::string> json;
  bool per_document = false;
};

/// Adds all of them to the command.
void add_eval_arguments(CLI::App& command, EvalArguments* arguments);

/// The suite, window and stride asked for. Throws UserError for a suite that does not exist, naming those
/// that do, and for a window that is none.
eval::PerplexityOptions perplexity_options(const EvalArguments& arguments);

/// The documents asked for, or the run's own validation shards. `open` outlives the source.
std::unique_ptr<eval::DocumentSource> open_documents(const EvalArguments& arguments,
                                                     const train::OpenModel& open);

}  // namespace osdn::apps
