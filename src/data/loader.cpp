#include "data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "data/detail/mixture.h"
#include "data/detail/token_stream.h"
#include "data/sample_order.h"

namespace osdn::data {
namespace loader_detail {

/// Appends one window to a batch: its tokens and the sequences that start in it.
void append_window(const detail::TokenStream& stream, int64_t sample, const LoaderOptions& options,
                   Batch* batch) {
  const int64_t length = options.sequence_length;
  const int64_t begin = sample * length;
  const int64_t base = batch->num_windows_ * length;  // of this window among the batch's inputs
  batch->tokens.resize(batch->tokens.size() + static_cast<size_t>(length) + 1);
  stream.read(begin, length + 1, batch->tokens.data() + batch->tokens.size() - (length + 1));
  if (batch->offsets.empty()) batch->offsets.push_back(0);
  if (options.documents == config::Documents::kReset) {
    std::vector<int64_t> starts;
    stream.sequence_starts(begin, begin + length, options.max_document_tokens, &starts);
    for (const int64_t start : starts) batch->offsets.push_back(base + start - begin);
  }
  batch->offsets.push_back(base + length);
  ++batch->num_windows_;
}

void check_options(const LoaderOptions& options) {
  if (options.sequence_length < 1)
    throw UserError("data.sequence_length: expected at least 1, got {}", options.sequence_length);
  if (options.max_document_tokens && *options.max_document_tokens < 1)
    throw UserError("data.max_document_tokens: expected at least 1, got {}", *options.max_document_tokens);
  if (options.max_document_tokens && options.documents == config::Documents::kCarry)
    throw UserError(
        "data.max_document_tokens: {} has no effect with `documents: carry` (use `documents: reset`)",
        *options.max_document_tokens);
}

void check_shares(const LoaderOptions& options) {
  const int64_t global = options.global_batch_sequences;
  const int64_t micro = options.micro_batch_sequences;
  OSDN_ASSERT(options.world_size >= 1 && options.rank >= 0 && options.rank < options.world_size,
              "rank {} of {}", options.rank, options.world_size);
  if (global < 1 || micro < 1)
    throw UserError("train: expected at least one sequence a global batch and a micro-batch, got {} and {}",
                    global, micro);
  if (global % (micro * options.world_size) != 0)
    throw UserError(
        "train.global_batch_tokens: {} sequences do not divide into micro-batches of {} on {} ranks (choose "
        "a "
        "multiple of {} sequences of {} tokens, or another train.micro_batch_sequences)",
        global, micro, options.world_size, micro * options.world_size, options.sequence_length);
  OSDN_ASSERT(options.samples_consumed >= 0 && options.prefetch >= 1, "start {} prefetch {}",
              options.samples_consumed, options.prefetch);
}

struct Source {
  std::vector<std::string> globs;
  double weight = 1.0;
};

/// Sources without weights are one long row; as soon as one has a weight, each is a source of its own.
std::vector<Source> group_sources(const std::vector<config::WeightedSource>& sources) {
  std::vector<Source> groups;
  bool weighted = false;
  for (const config::WeightedSource& source : sources) {
    if (!(source.weight > 0) || source.weight > 1e9)
      throw UserError("data.train: {}: expected a positive weight, got {}", source.path, source.weight);
    weighted = weighted || source.weight != 1.0;
  }
  for (const config::WeightedSource& source : sources) {
    if (weighted || groups.empty()) groups.push_back({.globs = {}, .weight = source.weight});
    groups.back().globs.push_back(source.path);
  }
  return groups;
}

int64_t checked_samples(const detail::TokenStream& stream, const std::string& name, int64_t length) {
  const int64_t samples = stream.num_samples(length);
  if (samples < 1)
    throw UserError("data.sequence_length: {} needs {} tokens, {} holds {} (shorten it or prepare more text)",
                    length, length + 1, name, stream.num_tokens());
  return samples;
}

}  // namespace loader_detail

struct Loader::Impl {
  LoaderOptions options;
  std::vector<std::unique_ptr<detail::TokenStream>> streams;
  std::vector<int64_t> stream_samples;  // an epoch of each
  std::unique_ptr<detail::Mixture> mixture;
  int64_t samples_per_epoch = 0;
  int64_t micro_per_step = 0;  // of this rank

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Batch> ready;
  std::exception_ptr failure;
  bool stop = false;
  int64_t handed_out = 0;  // micro-batches
  std::thread reader;

  Batch read(int64_t micro) const;
  void read_ahead();
};

/// The micro-th micro-batch of this rank, counted from options.samples_consumed.
Batch Loader::Impl::read(int64_t micro) const {
  const int64_t share = options.global_batch_sequences / options.world_size;
  const int64_t first = options.samples_consumed + micro / micro_per_step * options.global_batch_sequences +
                        options.rank * share + micro % micro_per_step * options.micro_batch_sequences;
  Batch batch;
  batch.first_sample = first;
  batch.epoch = first / samples_per_epoch;
  for (int64_t sample = first; sample < first + options.micro_batch_sequences; ++sample) {
    const detail::Mixture::Place place = (*mixture)(sample);
    const int64_t samples = stream_samples[place.source];
    const uint64_t seed = mix64(static_cast<uint64_t>(options.seed)) + place.source;
    const SampleOrder order(seed, static_cast<uint64_t>(place.index / samples), samples);
    loader_detail::append_window(*streams[place.source], order(place.index % samples), options, &batch);
  }
  return batch;
}

void Loader::Impl::read_ahead() {
  try {
    for (int64_t micro = 0;; ++micro) {
      Batch batch = read(micro);
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stop || static_cast<int64_t>(ready.size()) < options.prefetch; });
      if (stop) return;
      ready.push_back(std::move(batch));
      changed.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex);
    failure = std::current_exception();
    changed.notify_all();
  }
}

Loader::Loader(const std::vector<config::WeightedSource>& sources, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>()) {
  loader_detail::check_options(options);
  loader_detail::check_shares(options);
  if (sources.empty()) throw UserError("data.train: expected at least one source of shards, got none");
  impl_->options = options;
  impl_->micro_per_step =
      options.global_batch_sequences / (options.micro_batch_sequences * options.world_size);
  std::vector<double> weights;
  std::vector<const detail::TokenStream*> streams;
  for (const loader_detail::Source& source : loader_detail::group_sources(sources)) {
    weights.push_back(source.weight);
    impl_->streams.push_back(std::make_unique<detail::TokenStream>(source.globs, "data.train"));
    streams.push_back(impl_->streams.back().get());
    impl_->stream_samples.push_back(
        loader_detail::checked_samples(*streams.back(), source.globs.front(), options.sequence_length));
    impl_->samples_per_epoch += impl_->stream_samples.back();
  }
  detail::check_tokenizers(streams, options.vocab_size);
  impl_->mixture = std::make_unique<detail::Mixture>(weights);
  impl_->reader = std::thread([impl = impl_.get()] { impl->read_ahead(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
    impl_->changed.notify_all();
  }
  if (impl_->reader.joinable()) impl_->reader.join();
}

Batch Loader::next() {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [&] { return !impl_->ready.empty() || impl_->failure; });
  if (impl_->ready.empty()) std::rethrow_exception(impl_->failure);
  Batch batch = std::move(impl_->ready.front());
  impl_->ready.pop_front();
  ++impl_->handed_out;
  impl_->changed.notify_all();
  return batch;
}

int64_t Loader::samples_consumed() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->options.samples_consumed +
         impl_->handed_out / impl_->micro_per_step * impl_->options.global_batch_sequences;
}

int64_t Loader::samples_per_epoch() const { return impl_->samples_per_epoch; }

int64_t Loader::num_tokens() const {
  int64_t tokens = 0;
  for (const auto& stream : impl_->streams) tokens += stream->num_tokens();
  return tokens;
}

std::string Loader::digest() const {
  std::string digests;
  for (const auto& stream : impl_->streams)
    for (const auto& shard : stream->shards()) digests += shard->tokens_digest();
  return osdn::digest(digests).hex();
}

std::string Loader::tokenizer_digest() const {
  return impl_->streams.front()->shards().front()->tokenizer_digest();
}

struct ValidationSet::Impl {
  LoaderOptions options;
  std::unique_ptr<detail::TokenStream> stream;
  int64_t sequences = 0;
  int64_t batch = 0;
};

ValidationSet::ValidationSet(const std::vector<std::string>& globs, int64_t sequences, int64_t batch,
                             const LoaderOptions& options)
    : impl_(std::make_unique<Impl>()) {
  loader_detail::check_options(options);
  if (sequences < 1) throw UserError("evaluation.sequences: expected at least 1, got {}", sequences);
  OSDN_ASSERT(batch >= 1, "validation batches of {}", batch);
  impl_->options = options;
  impl_->stream = std::make_unique<detail::TokenStream>(globs, "data.validation");
  detail::check_tokenizers({impl_->stream.get()}, options.vocab_size);
  impl_->sequences = std::min(
      sequences, loader_detail::checked_samples(*impl_->stream, "data.validation", options.sequence_length));
  impl_->batch = batch;
}

ValidationSet::~ValidationSet() = default;

int64_t ValidationSet::num_batches() const { return (impl_->sequences + impl_->batch - 1) / impl_->batch; }

Batch ValidationSet::batch(int64_t index) const {
  OSDN_ASSERT(index >= 0 && index < num_batches(), "validation batch {} of {}", index, num_batches());
  Batch batch;
  batch.first_sample = index * impl_->batch;
  const int64_t end = std::min(impl_->sequences, batch.first_sample + impl_->batch);
  for (int64_t sample = batch.first_sample; sample < end; ++sample)
    loader_detail::append_window(*impl_->stream, sample, impl_->options, &batch);
  return batch;
}

double ValidationSet::bytes_per_token() const {
  return static_cast<double>(impl_->stream->text_bytes()) / static_cast<double>(impl_->stream->num_tokens());
}

}  // namespace osdn::data
