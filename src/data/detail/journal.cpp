#include "data/detail/journal.h"

namespace osdn::data::detail {
namespace journal_detail {

constexpr int kFormatVersion = 1;

Json to_json(const SplitState& state) {
  Json json = {{"closed_shards", state.closed_shards},
               {"documents", state.documents},
               {"tokens", state.tokens},
               {"bytes", state.bytes}};
  if (state.open) json["open"] = {{"tokens", state.open->tokens}, {"documents", state.open->documents}};
  return json;
}

SplitState split_from_json(const Json& json) {
  SplitState state;
  state.closed_shards = json.at("closed_shards");
  state.documents = json.at("documents");
  state.tokens = json.at("tokens");
  state.bytes = json.at("bytes");
  if (json.contains("open"))
    state.open =
        ShardPosition{.tokens = json.at("open").at("tokens"), .documents = json.at("open").at("documents")};
  return state;
}

bool is_possible(const SplitState& state) {
  const bool open =
      !state.open || (state.open->tokens >= 0 && state.open->documents >= 0 &&
                      state.open->tokens <= kMaxShardTokens && state.open->documents <= kMaxShardTokens);
  return open && state.closed_shards >= 0 && state.closed_shards <= 100'000;
}

}  // namespace journal_detail

Json Journal::to_json() const {
  Json json;
  json["format_version"] = journal_detail::kFormatVersion;
  json["request"] = request;
  json["tokenizer_digest"] = tokenizer_digest;
  json["batches"] = input.batches;
  json["digest"] = input.digest;
  json["input_bytes"] = input.input_bytes;
  json["dropped"] = input.dropped;
  json["checked"] = input.checked;
  json["changed"] = input.changed;
  json["skipped"] = input.skipped.counts;
  json["skipped_examples"] = input.skipped.examples;
  json["train"] = journal_detail::to_json(train);
  json["validation"] = journal_detail::to_json(validation);
  json["seconds"] = seconds;
  return json;
}

std::optional<Journal> Journal::from_json(const Json& json) {
  Journal journal;
  try {
    if (json.at("format_version") != journal_detail::kFormatVersion) return std::nullopt;
    journal.request = json.at("request");
    journal.tokenizer_digest = json.at("tokenizer_digest");
    journal.input.batches = json.at("batches");
    journal.input.digest = json.at("digest");
    journal.input.input_bytes = json.at("input_bytes");
    journal.input.dropped = json.at("dropped");
    journal.input.checked = json.at("checked");
    journal.input.changed = json.at("changed");
    journal.input.skipped.counts = json.at("skipped").get<decltype(SkippedRecords::counts)>();
    journal.input.skipped.examples = json.at("skipped_examples").get<std::vector<std::string>>();
    journal.train = journal_detail::split_from_json(json.at("train"));
    journal.validation = journal_detail::split_from_json(json.at("validation"));
    journal.seconds = json.at("seconds");
  } catch (const Json::exception&) {
    return std::nullopt;
  }
  const bool possible = journal.request.is_object() && journal.request.contains("configuration") &&
                        journal.request.at("configuration").is_object() && journal.input.batches >= 0 &&
                        journal_detail::is_possible(journal.train) &&
                        journal_detail::is_possible(journal.validation);
  if (!possible) return std::nullopt;
  return journal;
}

}  // namespace osdn::data::detail
