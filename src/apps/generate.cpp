#include "apps/generate.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>

#include "apps/detail/option_checks.h"
#include "apps/generate_prompts.h"
#include "apps/model_arguments.h"
#include "apps/text_stream.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "model/generate.h"
#include "tensor/torch.h"

namespace osdn::apps {
namespace generate_detail {

struct Options {
  ModelArguments model;
  std::vector<std::string> prompts;
  std::vector<std::string> prompt_files;
  std::vector<std::string> stops;
  model::GenerateOptions decoding;
  size_t batch = 32;
  bool json = false;
};

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw EnvironmentError("standard output: cannot write: {}", std::strerror(errno));
}

const char* finish_name(const model::Continuation& continuation, const TextStream& text) {
  if (text.stopped()) return "stop";
  return continuation.finish == model::Finish::kStopToken ? "end" : "length";
}

void generate(const Options& options) {
  model::check_sampling(options.decoding.sampling);
  const std::vector<Prompt> prompts = collect_prompts(options.prompts, options.prompt_files);
  const train::OpenModel open = open_model(options.model);
  if (!open.tokenizer)
    throw UserError("generate: {} names no tokenizer; pass --tokenizer tokenizer.model", open.directory);
  const data::Tokenizer& tokenizer = *open.tokenizer;
  check_stops(tokenizer, options.stops);
  const std::vector<model::TokenIds> ids = encode_prompts(tokenizer, prompts);
  const std::vector<uint64_t> keys = model::draw_keys(options.decoding.seed, ids);

  model::GenerateOptions decoding = options.decoding;
  decoding.sampling.num_ids = tokenizer.vocab_size();
  decoding.sampling.never = {tokenizer.pad_id(), tokenizer.unknown_id()};  // neither is text
  // eos ends a document and bos begins the next one: either ends a text.
  decoding.stop_tokens = {tokenizer.bos_id(), tokenizer.eos_id()};

  const auto started = std::chrono::steady_clock::now();
  const bool streams = prompts.size() == 1 && !options.json;
  if (streams) print(prompts[0].text);
  int64_t num_new = 0;
  uint64_t state_bytes = 0;
  for (size_t begin = 0; begin < prompts.size(); begin += options.batch) {
    const size_t end = std::min(begin + options.batch, prompts.size());
    std::vector<TextStream> texts(end - begin, TextStream(options.stops));
    const auto on_token = [&](int64_t row, int32_t token) {
      TextStream& text = texts[static_cast<size_t>(row)];
      const auto& ends = decoding.stop_tokens;
      if (std::find(ends.begin(), ends.end(), token) != ends.end()) return false;
      if (const std::string ready = text.push(tokenizer.piece_bytes(token)); streams) print(ready);
      return text.stopped();
    };
    const auto first = static_cast<std::ptrdiff_t>(begin);
    const auto last = static_cast<std::ptrdiff_t>(end);
    const std::vector<model::Continuation> continuations =
        model::generate(*open.model, {ids.begin() + first, ids.begin() + last},
                        {keys.begin() + first, keys.begin() + last}, decoding, open.device, on_token);
    for (size_t i = begin; i < end; ++i) {
      TextStream& text = texts[i - begin];
      const std::string rest = text.finish();
      const model::Continuation& continuation = continuations[i - begin];
      num_new += static_cast<int64_t>(continuation.tokens.size());
      state_bytes = std::max(state_bytes, continuation.state_bytes);
      if (options.json) {
        const Json record = {{"index", i},
                             {"prompt", prompts[i].text},
                             {"text", text.text()},
                             {"finish", finish_name(continuation, text)},
                             {"prompt_tokens", ids[i].size()},
                             {"new_tokens", continuation.tokens.size()},
                             {"state_bytes", continuation.state_bytes},
                             {"token_ids", continuation.tokens}};
        print(record.dump() + "\n");
      } else if (streams) {
        print(rest + "\n");
      } else {
        print((i > 0 ? "\n" : "") + prompts[i].text + text.text() + "\n");
      }
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  log::info(
      "{} new tokens for {} prompts in {:.2f} s, {:.1f} tokens/s, state {:.3f} MB a sequence ({}, step {})",
      num_new, prompts.size(), seconds, static_cast<double>(num_new) / seconds,
      static_cast<double>(state_bytes) / 1e6, describe_computation(open), open.step);
}

void add_sampling_options(CLI::App& command, Options* options) {
  model::SamplingOptions& sampling = options->decoding.sampling;
  command.add_option("--temperature", sampling.temperature, "0: greedy, the likeliest token every time")
      ->check(at_least_zero())
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Sample among the k likeliest; 0: all")
      ->check(at_least_zero())
      ->capture_default_str();
  command
      .add_option("--top-p", sampling.top_p, "Sample among the likeliest of this total probability, above 0")
      ->check(probability_above_zero())
      ->capture_default_str();
  command.add_option("--repetition-penalty", sampling.repetition_penalty, "Above 1 discourages repeats")
      ->check(above_zero())
      ->capture_default_str();
  command.add_option("--seed", options->decoding.seed, "Of the sampling")->capture_default_str();
}

}  // namespace generate_detail

void add_generate(CLI::App& root) {
  const auto options = std::make_shared<generate_detail::Options>();
  CLI::App* command =
      root.add_subcommand("generate", "Continue prompts by recurrent decoding with constant memory");
  add_model_arguments(*command, &options->model);
  command->add_option("--prompt", options->prompts, "Text to continue (repeatable; \"\" starts from nothing)")
      ->allow_extra_args(false);
  command
      ->add_option("--prompts", options->prompt_files,
                   "File of prompts: one a line, or .jsonl of strings or {\"prompt\": ...} (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--max-tokens", options->decoding.max_new_tokens, "New tokens at most")
      ->check(at_least_zero())
      ->capture_default_str();
  generate_detail::add_sampling_options(*command, options.get());
  command->add_option("--stop", options->stops, "Text that ends the output, not printed (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--batch", options->batch, "Prompts decoded together; changes no result, only speed")
      ->check(above_zero())
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object a prompt instead of text");
  command->footer(
      "Example:\n  osdn generate runs/quickstart-osdn --prompt \"The baker\" --temperature 0.8 --top-k 40");
  command->callback([options] { generate_detail::generate(*options); });
}

}  // namespace osdn::apps
