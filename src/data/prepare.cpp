#include "data/prepare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "data/detail/encode_documents.h"
#include "data/detail/journal.h"
#include "data/detail/ordered_pipeline.h"
#include "data/detail/prepare_request.h"
#include "data/detail/publish.h"
#include "data/detail/split_writer.h"
#include "data/detail/stage_progress.h"
#include "data/documents.h"
#include "data/records.h"
#include "data/shard.h"
#include "data/tokenizer.h"

namespace osdn::data {
namespace prepare_detail {

constexpr int64_t kJournalBytes = int64_t{64} << 20;  // of text between two entries in the journal

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Preparation {
 public:
  Preparation(const config::Prepare& settings, const PrepareOptions& options)
      : settings_(settings), options_(options), workers_(detail::num_workers(settings)) {}

  PrepareReport run();

 private:
  std::optional<PrepareReport> reuse(const detail::OutputFolder& folder) const;
  std::optional<detail::Journal> unfinished(const detail::OutputFolder& folder) const;
  Json request() const;
  Json so_far(Json request, bool skipped) const;
  void load_model();
  double validation_limit() const;
  bool pass_over(InputReader* reader) const;
  bool write_set(const detail::OutputFolder& folder);
  bool write_shards(const Tokenizer& tokenizer, const detail::OutputFolder& folder);
  void write_journal(const detail::OutputFolder& folder, detail::SplitWriter* train,
                     detail::SplitWriter* validation);
  void warn() const;
  double seconds() const { return before_.seconds + seconds_since(start_); }
  Json report_json() const;

  config::Prepare settings_;
  PrepareOptions options_;
  int64_t workers_;
  Clock::time_point start_ = Clock::now();
  std::vector<InputFile> files_;
  std::optional<Tokenizer> given_;
  Json configuration_;
  detail::Journal before_;  // where an interrupted call stopped
  detail::Journal journal_;
  PrepareReport report_;
  std::vector<std::string> written_;  // names of the files in the folder
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
                    published.contains("inputs") && published.at("inputs") == detail::describe(files_);
  if (options_.overwrite) return std::nullopt;
  if (!same)
    throw UserError(
        "{}: holds shards of another preparation ({}; choose another prepare.output, or replace them with "
        "--overwrite)",
        settings_.output,
        detail::first_difference(published.value("configuration", Json::object()), configuration_));
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

/// Settings, and digests of the inputs: a list of a million files is too long for every entry of a journal.
Json Preparation::request() const {
  std::string paths;
  for (const InputFile& file : files_) paths += file.path + '\n';
  return {{"configuration", configuration_},
          {"paths", digest(paths).hex()},
          {"inputs", digest(json_text(detail::describe(files_))).hex()}};
}

/// The part of a request that the input read so far depends on; what was read is compared by its digest.
/// Where no record was skipped, none was broken or too long, so that a broken one further on may be corrected
/// or skipped. A trained tokenizer has seen all inputs to their ends.
Json Preparation::so_far(Json request, bool skipped) const {
  if (!skipped && request.contains("configuration"))
    for (const char* key : {"on_error", "max_record_bytes"}) request["configuration"].erase(key);
  if (settings_.tokenizer_model) request.erase("inputs");
  return request;
}

/// What an interrupted call for the same left in the hidden folder.
std::optional<detail::Journal> Preparation::unfinished(const detail::OutputFolder& folder) const {
  std::optional<detail::Journal> journal = detail::Journal::from_json(folder.journal());
  if (!journal) return std::nullopt;
  const bool skipped = journal->input.skipped.total() > 0;
  const Json before = so_far(journal->request, skipped);
  const Json now = so_far(request(), skipped);
  if (before != now) {
    log::warning(
        "{}: starts over: the preparation that was interrupted here was another one ({})", settings_.output,
        detail::first_difference(before.value("configuration", Json::object()), now.at("configuration")));
    return std::nullopt;
  }
  const std::string model = folder.staged("tokenizer.model");
  if (!std::filesystem::exists(model) || digest_file(model).hex() != journal->tokenizer_digest)
    return std::nullopt;
  journal->request = request();
  return journal;
}

/// The tokenizer of the settings, if there is one.
void Preparation::load_model() {
  if (!settings_.tokenizer_model) return;
  given_ = Tokenizer::load(*settings_.tokenizer_model);
  const Tokenizer& tokenizer = *given_;
  const std::string& path = *settings_.tokenizer_model;
  if (tokenizer.bos_id() < 0)
    throw UserError("{}: expected a tokenizer with a bos piece, which starts every document, found none",
                    path);
  if (settings_.add_eos && tokenizer.eos_id() < 0)
    throw UserError("{}: prepare.add_eos needs a tokenizer with an eos piece, found none", path);
  if (tokenizer.text_reaches_control_ids())
    log::warning(
        "{}: control pieces are user-defined symbols: a document that contains their text will contain their "
        "ids",
        path);
  if (!tokenizer.lossless())
    log::warning(
        "{}: this tokenizer does not keep every text as it is ({}); bits per byte count the bytes of the "
        "original",
        path, tokenizer.losses());
}

/// Documents below this place are for validation. The built-in corpus always has one: were there none, its
/// first in order of place is taken.
double Preparation::validation_limit() const {
  if (!settings_.builtin || settings_.validation_fraction == 0) return settings_.validation_fraction;
  InputReader reader(settings_, files_, options_.builtin_seed);
  double smallest = 1;
  for (RawDocuments raw; reader.next(&raw);)
    for (const std::string& text : split_documents(raw, settings_).texts)
      smallest = std::min(smallest, detail::split_place(text));
  return std::max(settings_.validation_fraction, std::nextafter(smallest, 2.0));
}

/// Reads what an interrupted call had done. False when it is not the same any more.
bool Preparation::pass_over(InputReader* reader) const {
  if (before_.input.batches == 0) return true;
  detail::StageProgress progress(options_.progress, "passing over what is done", before_.input.input_bytes);
  uint64_t digest = 0;
  for (int64_t batch = 0; batch < before_.input.batches; ++batch) {
    detail::Stretch stretch;
    if (!detail::read_stretch(reader, &digest, &stretch)) return false;
    progress.add(stretch.raw.input_bytes);
  }
  return digest == before_.input.digest;
}

void Preparation::write_journal(const detail::OutputFolder& folder, detail::SplitWriter* train,
                                detail::SplitWriter* validation) {
  journal_.train = train->sync();
  journal_.validation = validation->sync();
  journal_.seconds = seconds();
  folder.write_journal(journal_.to_json());
  train->remove_parts();
  validation->remove_parts();
}

/// False when the input is not what the interrupted call read.
bool Preparation::write_shards(const Tokenizer& tokenizer, const detail::OutputFolder& folder) {
  InputReader reader(settings_, files_, options_.builtin_seed);
  if (!pass_over(&reader)) return false;
  ShardMeta meta{
      .tokenizer_digest = tokenizer.digest(), .vocab_size = tokenizer.vocab_size(), .source_names = {}};
  for (const InputFile& file : files_) meta.source_names.push_back(file.path);
  if (settings_.builtin) meta.source_names.push_back(fmt::format("builtin:{}", options_.builtin_seed));
  detail::SplitWriter train("train", folder, meta, settings_.shard_tokens, before_.train);
  detail::SplitWriter validation("valid", folder, meta, settings_.shard_tokens, before_.validation);
  detail::StageProgress progress(options_.progress, "encoding", reader.total_bytes(),
                                 before_.input.input_bytes);
  detail::WorkerPool* pool = nullptr;
  detail::OrderedPipeline<detail::Stretch, detail::EncodedBatch> pipeline(
      {.workers = workers_,
       .limit_bytes = detail::pipeline_bytes(settings_),
       .size_bytes = [](const detail::Stretch& item) { return static_cast<int64_t>(item.raw.bytes.size()); }},
      [&, limit = validation_limit()](detail::Stretch&& stretch) {
        return detail::encode_documents(std::move(stretch), settings_, tokenizer, limit, pool);
      });
  pool = &pipeline.pool();
  uint64_t digest = before_.input.digest;
  int64_t since_journal = 0;  // bytes of text
  pipeline.run([&](detail::Stretch* stretch) { return detail::read_stretch(&reader, &digest, stretch); },
               [&](detail::EncodedBatch&& batch) {
                 for (const detail::EncodedDocument& document : batch.documents)
                   (document.validation ? validation : train).add(document.tokens, document.bytes);
                 detail::InputCounts& counts = journal_.input;
                 ++counts.batches;
                 counts.digest = batch.digest;
                 counts.input_bytes += batch.input_bytes;
                 counts.dropped += batch.dropped;
                 counts.skipped.add(batch.skipped);
                 counts.checked += batch.checked;
                 counts.changed += batch.changed;
                 since_journal += batch.text_bytes;
                 if (train.has_closed() || validation.has_closed() || since_journal >= kJournalBytes) {
                   write_journal(folder, &train, &validation);
                   since_journal = 0;
                 }
                 progress.add(batch.input_bytes);
               });
  if (since_journal > 0) write_journal(folder, &train, &validation);
  train.close();
  validation.close();
  const auto report = [&](const detail::SplitWriter& split, PreparedSplit* target) {
    target->documents = split.state().documents;
    target->tokens = split.state().tokens;
    target->bytes = split.state().bytes;
    for (const std::string& file : split.files()) {
      target->shards.push_back(folder.final_path(file));
      written_.push_back(file);
    }
  };
  report(train, &report_.train);
  report(validation, &report_.validation);
  report_.dropped_documents = journal_.input.dropped;
  report_.skipped = journal_.input.skipped;
  report_.checked_documents = journal_.input.checked;
  report_.changed_documents = journal_.input.changed;
  return true;
}

/// Continues after before_, or begins. False when before_ does not fit the input.
bool Preparation::write_set(const detail::OutputFolder& folder) {
  written_ = {"tokenizer.model"};
  const bool continues = !before_.tokenizer_digest.empty();
  std::optional<Tokenizer> trained;
  if (!given_)
    trained =
        continues ? Tokenizer::load(folder.staged("tokenizer.model")) : train_on_inputs(settings_, options_);
  const Tokenizer& tokenizer = given_ ? *given_ : *trained;
  report_.vocab_size = tokenizer.vocab_size();
  journal_ = before_;
  if (!continues) {
    atomic_write(folder.staged("tokenizer.model"), tokenizer.model_bytes());
    journal_.request = request();
    journal_.tokenizer_digest = tokenizer.digest();
    journal_.seconds = seconds();
    folder.write_journal(journal_.to_json());
  }
  return write_shards(tokenizer, folder);
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
  json["inputs"] = detail::describe(files_);
  json["files"] = written_;
  json["tokenizer_digest"] = journal_.tokenizer_digest;
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

void Preparation::warn() const {
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
        "tokenizer is lossy",
        report_.changed_documents, report_.checked_documents);
}

PrepareReport Preparation::run() {
  detail::check_settings(settings_);
  files_ = find_inputs(settings_);
  configuration_ = detail::describe(settings_, options_.builtin_seed);
  load_model();
  detail::OutputFolder folder(settings_.output);
  if (std::optional<PrepareReport> done = reuse(folder)) {
    folder.discard();
    return *done;
  }
  if (std::optional<detail::Journal> journal = unfinished(folder)) {
    before_ = std::move(*journal);
    log::info(
        "{}: continues an interrupted preparation: {} train and {} validation shards and {} MB of input are "
        "done",
        settings_.output, before_.train.closed_shards, before_.validation.closed_shards,
        before_.input.input_bytes / 1'000'000);
  } else {
    folder.begin();
  }
  if (!write_set(folder)) {
    log::warning("{}: starts over: the input is not what the interrupted preparation read", settings_.output);
    folder.begin();
    before_ = {};
    report_ = {};
    OSDN_ASSERT(write_set(folder), "{}: nothing to continue, and still it does not fit", settings_.output);
  }
  if (report_.train.documents == 0)
    throw UserError(
        "prepare: expected documents to train on, got {} for validation and {} without text (add text or "
        "lower prepare.validation_fraction)",
        report_.validation.documents, report_.dropped_documents);
  warn();
  report_.seconds = seconds();
  folder.publish(report_json());
  report_.tokenizer_model = folder.final_path("tokenizer.model");
  return report_;
}

}  // namespace prepare_detail

PrepareReport prepare(const config::Prepare& settings, const PrepareOptions& options) {
  return prepare_detail::Preparation(settings, options).run();
}

}  // namespace osdn::data
