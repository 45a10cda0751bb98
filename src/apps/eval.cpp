#include "apps/eval.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>

#include "apps/eval_arguments.h"
#include "apps/eval_report.h"
#include "base/error.h"
#include "base/fs.h"
#include "eval/perplexity.h"
#include "metrics/progress.h"
#include "tensor/torch.h"

namespace osdn::apps {
namespace eval_detail {

constexpr int64_t kTokensAtOnceCpu = 4096;
constexpr int64_t kTokensAtOnceCuda = 16384;

void evaluate(const EvalArguments& options) {
  eval::PerplexityOptions settings = perplexity_options(options);
  const train::OpenModel open = open_model(options.model);
  const std::unique_ptr<eval::DocumentSource> source = open_documents(options, open);
  settings.tokens_at_once =
      options.tokens_at_once.value_or(open.device.is_cuda() ? kTokensAtOnceCuda : kTokensAtOnceCpu);
  settings.training_length = open.config.data.sequence_length;
  eval::Perplexity perplexity(*open.model, open.device, settings);
  const auto started = std::chrono::steady_clock::now();
  {
    metrics::Progress progress(fmt::format("evaluation, {}", source->unit()), source->total_units(), 0);
    eval::EvalDocument document;
    for (int64_t count = 0; !options.max_documents || count < *options.max_documents; ++count) {
      if (!source->next(&document)) break;
      perplexity.add(document);
      // Until the first batch is full there is nothing to tell, not even a rate.
      if (perplexity.tokens_so_far() == 0) continue;
      progress.update(source->done_units(), fmt::format("loss {:.4f}", perplexity.loss_so_far()));
    }
  }
  const eval::PerplexityResult result = perplexity.finish();
  if (result.totals.num_tokens == 0)
    throw UserError("eval: expected documents with text in {}{}, found none", source->paths().front(),
                    source->paths().size() > 1 ? " and the other files" : "");

  PerplexityRun run{
      .checkpoint = open.directory,
      .step = open.step,
      .computation = describe_computation(open),
      .data = source->paths(),
      .text_form = source->text_form(),
      .num_changed = source->num_changed(),
      .num_skipped = source->num_skipped(),
      .training_length = settings.training_length,
      .window = settings.window,
      .stride = settings.stride,
      .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count()};
  if (open.tokenizer) {
    run.tokenizer_digest = open.tokenizer->digest();
    run.tokenizer_lossless = open.tokenizer->lossless();
  }
  const bool json_only = options.json == "-";
  if (options.json) {
    const std::string text = json_text(perplexity_json(run, result, options.per_document), 2) + "\n";
    if (json_only)
      std::fputs(text.c_str(), stdout);
    else
      atomic_write(*options.json, text);
  }
  if (!json_only) std::fputs(perplexity_table(run, result).c_str(), stdout);
}

}  // namespace eval_detail

void add_eval(CLI::App& root) {
  const auto options = std::make_shared<EvalArguments>();
  CLI::App* command = root.add_subcommand("eval", "Evaluate a trained model: perplexity of documents");
  add_eval_arguments(*command, options.get());
  command->footer(
      "Example:\n  osdn eval runs/quickstart-osdn --suite perplexity\n"
      "  osdn eval runs/mine --suite perplexity --data 'books/*.txt' --window 2048 --stride 512 --json "
      "books.json");
  command->callback([options] { eval_detail::evaluate(*options); });
}

}  // namespace osdn::apps
