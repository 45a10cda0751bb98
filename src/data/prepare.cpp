#include "data/prepare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "data/detail/ordered_pipeline.h"
#include "data/detail/publish.h"
#include "data/detail/stage_progress.h"
#include "data/documents.h"
#include "data/records.h"
#include "data/shard.h"
#include "data/tokenizer.h"

namespace osdn::data {
namespace prepare_detail {

constexpr uint64_t kSplitSeed = 0x5911;  // of the hash that sends a document to validation
constexpr uint64_t kCheckEvery = 64;     // documents, by hash

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check_settings(const config::Prepare& settings) {
  if (settings.builtin == !settings.input.empty())
    throw UserError("prepare: expected either input files or the built-in corpus, got {}",
                    settings.builtin ? "both (remove prepare.input or prepare.builtin)"
                                     : "neither (set prepare.input or prepare.builtin)");
  if (settings.output.empty()) throw UserError("prepare.output: expected a folder, got an empty name");
  if (!(settings.validation_fraction >= 0) || settings.validation_fraction >= 1)
    throw UserError("prepare.validation_fraction: expected 0 or more and less than 1, got {}",
                    settings.validation_fraction);
  if (settings.shard_tokens < 1 || settings.shard_tokens > kMaxShardTokens)
    throw UserError("prepare.shard_tokens: expected 1 to {}, got {}", kMaxShardTokens, settings.shard_tokens);
  if (settings.workers < 0 || settings.workers > 4096)
    throw UserError("prepare.workers: expected 0 (all cores) to 4096, got {}", settings.workers);
  if (settings.builtin && (settings.builtin_megabytes < 1 || settings.builtin_megabytes > 1'000'000))
    throw UserError("prepare.builtin_megabytes: expected 1 to 1000000, got {}", settings.builtin_megabytes);
}

/// Everything that decides what the shards hold, inputs aside.
Json describe(const config::Prepare& settings, const PrepareOptions& options) {
  Json json;
  if (settings.builtin) {
    json["builtin_megabytes"] = settings.builtin_megabytes;
    json["builtin_seed"] = options.builtin_seed;
  } else {
    json["format"] = settings.format;
    json["text_key"] = settings.text_key;
    json["on_error"] = settings.on_error;
    json["max_record_bytes"] = settings.max_record_bytes;
  }
  json["validation_fraction"] = settings.validation_fraction;
  json["add_eos"] = settings.add_eos;
  json["shard_tokens"] = settings.shard_tokens;
  if (settings.tokenizer_model) {
    json["tokenizer_model"] = digest_file(*settings.tokenizer_model).hex();
  } else {
    json["tokenizer_type"] = settings.tokenizer.type == config::TokenizerType::kBpe ? "bpe" : "unigram";
    json["vocab_size"] = settings.tokenizer.vocab_size;
  }
  return json;
}

Json describe(const std::vector<InputFile>& files) {
  Json json = Json::array();
  for (const InputFile& file : files)
    json.push_back({{"path", file.path}, {"bytes", file.size_bytes}, {"modified_ns", file.modified_ns}});
  return json;
}

std::string first_difference(const Json& before, const Json& after) {
  for (const auto& [key, value] : after.items())
    if (!before.contains(key) || before.at(key) != value)
      return fmt::format("{}: {} -> {}", key, before.contains(key) ? before.at(key).dump() : "absent",
                         value.dump());
  for (const auto& [key, value] : before.items())
    if (!after.contains(key)) return fmt::format("{}: {} -> absent", key, value.dump());
  return "the input files";
}

struct EncodedDocument {
  std::vector<int32_t> tokens;
  int64_t bytes = 0;
  bool validation = false;
};

struct EncodedBatch {
  std::vector<EncodedDocument> documents;
  int64_t dropped = 0;
  SkippedRecords skipped;
  int64_t checked = 0;
  int64_t changed = 0;
  int64_t input_bytes = 0;
};

/// One side of the split while it is written.
class SplitWriter {
 public:
  SplitWriter(std::string name, const detail::OutputFolder& folder, ShardMeta meta, int64_t shard_tokens)
      : name_(std::move(name)), folder_(folder), meta_(std::move(meta)), shard_tokens_(shard_tokens) {}

  void add(const EncodedDocument& document) {
    const auto size = static_cast<int64_t>(document.tokens.size());
    if (writer_ && writer_->num_tokens() + size > shard_tokens_) close();
    if (!writer_) {
      if (files_.size() == 100'000)
        throw UserError("prepare.shard_tokens: {} gives more than 100000 shards", shard_tokens_);
      files_.push_back(fmt::format("{}-{:05d}.h5", name_, files_.size()));
      writer_ = std::make_unique<ShardWriter>(folder_.staged(files_.back()), meta_);
    }
    writer_->add_document(document.tokens, document.bytes);
    ++split_.documents;
    split_.tokens += size;
    split_.bytes += document.bytes;
  }

  PreparedSplit finish() {
    close();
    for (const std::string& file : files_) split_.shards.push_back(folder_.final_path(file));
    return split_;
  }
  const std::vector<std::string>& files() const { return files_; }

 private:
  void close() {
    if (writer_) writer_->finish();
    writer_.reset();
  }

  std::string name_;
  const detail::OutputFolder& folder_;
  ShardMeta meta_;
  int64_t shard_tokens_;
  std::unique_ptr<ShardWriter> writer_;
  std::vector<std::string> files_;
  PreparedSplit split_;
};

/// A document's place in [0, 1) by its text, so that equal documents fall on one side.
double split_place(const std::string& text) {
  return static_cast<double>(hash64(text, kSplitSeed) >> 11) * 0x1.0p-53;
}

class Preparation {
 public:
  Preparation(const config::Prepare& settings, const PrepareOptions& options)
      : settings_(settings), options_(options), workers_(detail::num_workers(settings)) {}

  PrepareReport run();

 private:
  std::optional<PrepareReport> reuse(const detail::OutputFolder& folder) const;
  Tokenizer make_tokenizer();
  double validation_limit() const;
  EncodedBatch encode(RawDocuments&& raw, const Tokenizer& tokenizer, double limit) const;
  void write_shards(const Tokenizer& tokenizer, detail::OutputFolder* folder);
  Json report_json() const;

  config::Prepare settings_;
  PrepareOptions options_;
  int64_t workers_;
  std::vector<InputFile> files_;
  Json configuration_;
  PrepareReport report_;
  std::vector<std::string> written_;  // names of the files in the folder
  std::string tokenizer_digest_;
};

void read_split(const Json& json, const detail::OutputFolder& folder, PreparedSplit* split) {
  for (const std::string name : json.at("shards")) split->shards.push_back(folder.final_path(name));
  split->documents = json.at("documents");
  split->tokens = json.at("tokens");
  split->bytes = json.at("bytes");
}

/// What the folder holds already, when it is exactly what was asked for.
std::optional<PrepareReport> Preparation::reuse(const detail::OutputFolder& folder) const {
  const Json published = folder.published();
  if (published.is_null()) {
    if (folder.holds_shards() && !options_.overwrite)
      throw UserError(
          "{}: holds shards without a prepare.json, which something else made (choose another "
          "prepare.output, or "
          "replace them with --overwrite)",
          settings_.output);
    return std::nullopt;
  }
  const bool same = published.contains("configuration") && published.at("configuration") == configuration_ &&
                    published.contains("inputs") && published.at("inputs") == describe(files_);
  if (options_.overwrite) return std::nullopt;
  if (!same)
    throw UserError(
        "{}: holds shards of another preparation ({}; choose another prepare.output, or replace them with "
        "--overwrite)",
        settings_.output, first_difference(published.value("configuration", Json::object()), configuration_));
  PrepareReport report;
  read_split(published.at("train"), folder, &report.train);
  read_split(published.at("validation"), folder, &report.validation);
  report.dropped_documents = published.at("dropped_documents");
  for (size_t i = 0; i < kRecordFaultNames.size(); ++i)
    report.skipped.counts[i] = published.at("skipped_records").value(kRecordFaultNames[i], int64_t{0});
  report.checked_documents = published.at("checked_documents");
  report.changed_documents = published.at("changed_documents");
  report.vocab_size = published.at("vocab_size");
  report.seconds = published.at("seconds");
  report.tokenizer_model = folder.final_path("tokenizer.model");
  report.already_done = true;
  for (const auto* split : {&report.train, &report.validation})
    for (const std::string& shard : split->shards)
      ShardReader{shard};  // complete and readable, or it says what is not
  return report;
}

Tokenizer Preparation::make_tokenizer() {
  if (settings_.tokenizer_model) {
    Tokenizer tokenizer = Tokenizer::load(*settings_.tokenizer_model);
    if (tokenizer.bos_id() < 0)
      throw UserError("{}: expected a tokenizer with a bos piece, which starts every document, found none",
                      *settings_.tokenizer_model);
    if (settings_.add_eos && tokenizer.eos_id() < 0)
      throw UserError("{}: prepare.add_eos needs a tokenizer with an eos piece, found none",
                      *settings_.tokenizer_model);
    if (tokenizer.text_reaches_control_ids())
      log::warning(
          "{}: control pieces are user-defined symbols: a document that contains their text will contain "
          "their ids",
          *settings_.tokenizer_model);
    if (!tokenizer.lossless())
      log::warning(
          "{}: the tokenizer changes some texts (normalisation, spaces or unknown characters): bits per byte "
          "count "
          "the bytes of the original",
          *settings_.tokenizer_model);
    return tokenizer;
  }
  return train_on_inputs(settings_, options_);
}

/// Documents below this place are for validation. The built-in corpus always has one: were there none, its
/// first in order of place is taken.
double Preparation::validation_limit() const {
  if (!settings_.builtin || settings_.validation_fraction == 0) return settings_.validation_fraction;
  InputReader reader(settings_, files_, options_.builtin_seed);
  double smallest = 1;
  for (RawDocuments raw; reader.next(&raw);)
    for (const std::string& text : split_documents(raw, settings_).texts)
      smallest = std::min(smallest, split_place(text));
  return std::max(settings_.validation_fraction, std::nextafter(smallest, 2.0));
}

EncodedBatch Preparation::encode(RawDocuments&& raw, const Tokenizer& tokenizer, double limit) const {
  EncodedBatch batch;
  batch.input_bytes = raw.input_bytes;
  SplitDocuments split = split_documents(raw, settings_);
  batch.skipped = std::move(split.skipped);
  for (const std::string& text : split.texts) {
    if (is_empty_document(text)) {
      ++batch.dropped;
      continue;
    }
    EncodedDocument document;
    document.bytes = static_cast<int64_t>(text.size());
    document.validation = split_place(text) < limit;
    std::vector<int32_t> ids = tokenizer.encode(text);
    if (hash64(text, 0) % kCheckEvery == 0) {
      ++batch.checked;
      if (tokenizer.decode(ids) != text) ++batch.changed;
      OSDN_ASSERT(batch.changed == 0 || !tokenizer.lossless(),
                  "{}: a document does not come back from its tokens", raw.origin);
    }
    document.tokens.reserve(ids.size() + 2);
    document.tokens.push_back(tokenizer.bos_id());
    document.tokens.insert(document.tokens.end(), ids.begin(), ids.end());
    if (settings_.add_eos) document.tokens.push_back(tokenizer.eos_id());
    batch.documents.push_back(std::move(document));
  }
  return batch;
}

void Preparation::write_shards(const Tokenizer& tokenizer, detail::OutputFolder* folder) {
  ShardMeta meta{
      .tokenizer_digest = tokenizer.digest(), .vocab_size = tokenizer.vocab_size(), .source_names = {}};
  for (const InputFile& file : files_) meta.source_names.push_back(file.path);
  if (settings_.builtin) meta.source_names.push_back(fmt::format("builtin:{}", options_.builtin_seed));
  SplitWriter train("train", *folder, meta, settings_.shard_tokens);
  SplitWriter validation("valid", *folder, meta, settings_.shard_tokens);
  InputReader reader(settings_, files_, options_.builtin_seed);
  detail::StageProgress progress(options_.progress, "encoding", reader.total_bytes());
  detail::OrderedPipeline<RawDocuments, EncodedBatch> pipeline(
      workers_, [this, &tokenizer, limit = validation_limit()](RawDocuments&& raw) {
        return encode(std::move(raw), tokenizer, limit);
      });
  pipeline.run([&](RawDocuments* raw) { return reader.next(raw); },
               [&](EncodedBatch&& batch) {
                 for (const EncodedDocument& document : batch.documents)
                   (document.validation ? validation : train).add(document);
                 report_.dropped_documents += batch.dropped;
                 report_.skipped.add(batch.skipped);
                 report_.checked_documents += batch.checked;
                 report_.changed_documents += batch.changed;
                 progress.add(batch.input_bytes);
               });
  report_.train = train.finish();
  report_.validation = validation.finish();
  for (const SplitWriter* split : {&train, &validation})
    written_.insert(written_.end(), split->files().begin(), split->files().end());
}

Json split_json(const PreparedSplit& split) {
  Json names = Json::array();
  for (const std::string& path : split.shards) names.push_back(path.substr(path.rfind('/') + 1));
  return {
      {"shards", names}, {"documents", split.documents}, {"tokens", split.tokens}, {"bytes", split.bytes}};
}

Json Preparation::report_json() const {
  Json json;
  json["format_version"] = 1;
  json["configuration"] = configuration_;
  json["inputs"] = describe(files_);
  json["files"] = written_;
  json["tokenizer_digest"] = tokenizer_digest_;
  json["vocab_size"] = report_.vocab_size;
  json["train"] = split_json(report_.train);
  json["validation"] = split_json(report_.validation);
  json["dropped_documents"] = report_.dropped_documents;
  json["skipped_records"] = Json::object();
  for (size_t i = 0; i < kRecordFaultNames.size(); ++i)
    json["skipped_records"][kRecordFaultNames[i]] = report_.skipped.counts[i];
  json["checked_documents"] = report_.checked_documents;
  json["changed_documents"] = report_.changed_documents;
  const int64_t tokens = report_.train.tokens + report_.validation.tokens;
  json["bytes_per_token"] =
      static_cast<double>(report_.train.bytes + report_.validation.bytes) / static_cast<double>(tokens);
  json["seconds"] = report_.seconds;
  return json;
}

PrepareReport Preparation::run() {
  const Clock::time_point start = Clock::now();
  check_settings(settings_);
  files_ = find_inputs(settings_);
  configuration_ = describe(settings_, options_);
  detail::OutputFolder folder(settings_.output);
  if (std::optional<PrepareReport> done = reuse(folder)) return *done;
  folder.begin();
  const Tokenizer tokenizer = make_tokenizer();
  report_.vocab_size = tokenizer.vocab_size();
  tokenizer_digest_ = tokenizer.digest();
  atomic_write(folder.staged("tokenizer.model"), tokenizer.model_bytes());
  written_.push_back("tokenizer.model");
  write_shards(tokenizer, &folder);
  if (report_.train.documents == 0)
    throw UserError(
        "prepare: expected documents to train on, got {} for validation and {} without text (add text or "
        "lower "
        "prepare.validation_fraction)",
        report_.validation.documents, report_.dropped_documents);
  for (const std::string& message : report_.skipped.examples) log::warning("skipped: {}", message);
  if (report_.skipped.total() > 0)
    log::warning("prepare: {} records were skipped, the first of them named above", report_.skipped.total());
  if (settings_.validation_fraction > 0 && report_.validation.documents == 0)
    log::warning(
        "prepare: none of {} documents fell to validation with a fraction of {} (raise "
        "prepare.validation_fraction, or split the text into more documents)",
        report_.train.documents, settings_.validation_fraction);
  if (report_.changed_documents > 0)
    log::warning(
        "prepare: {} of {} documents that were checked do not come back from their tokens exactly: the "
        "tokenizer "
        "is lossy",
        report_.changed_documents, report_.checked_documents);
  report_.seconds = seconds_since(start);
  folder.publish(report_json());
  report_.tokenizer_model = folder.final_path("tokenizer.model");
  return report_;
}

}  // namespace prepare_detail

PrepareReport prepare(const config::Prepare& settings, const PrepareOptions& options) {
  return prepare_detail::Preparation(settings, options).run();
}

}  // namespace osdn::data
