#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <optional>

#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/retention.h"
#include "config/yaml.h"
#include "data/loader.h"
#include "dist/communicator.h"
#include "dist/launch.h"
#include "eval/validation.h"
#include "metrics/jsonl_writer.h"
#include "metrics/progress.h"
#include "metrics/tensorboard_writer.h"
#include "metrics/throughput.h"
#include "model/init.h"
#include "model/lm.h"
#include "optim/decay_groups.h"
#include "optim/parameter_arena.h"
#include "tensor/device.h"
#include "tensor/failure.h"
#include "tensor/torch.h"
#include "train/agreement.h"
#include "train/data_parallel.h"
#include "train/environment.h"
#include "train/passes.h"
#include "train/run_directory.h"
#include "train/setup.h"
#include "train/signals.h"
#include "train/snapshot.h"
#include "train/state.h"
#include "train/step.h"
#include "train/step_sums.h"
#include "train/update.h"

namespace osdn::train {
namespace {

using Clock = std::chrono::steady_clock;

class Trainer {
 public:
  Trainer(config::Config config, const dist::LaunchEnvironment& launched,
          const std::vector<std::string>& command_line, const Connect& connect);
  ExitCode run();

 private:
  bool is_first() const { return communicator_->rank() == 0; }
  ExitCode run_steps();
  void settle();
  void allocate();
  void fill_weights();
  void open_data();
  void open_outputs(const std::vector<std::string>& command_line);
  checkpoint::Team checkpoint_team();
  void describe_run(const std::vector<std::string>& command_line);

  metrics::StepRecord step();
  bool minutes_up() const;
  void fill_residuals(metrics::StepRecord& record, const StepSums& sums) const;
  std::optional<metrics::Validation> validate();
  std::optional<ExitCode> stop_requested() const;
  bool save_due() const;
  void write(const metrics::StepRecord& record);
  void save();
  void finish_saving();

  SignalGuard signals_;  // first: a signal during set-up is honoured after the first step
  config::Config config_;
  at::Device device_;
  std::unique_ptr<dist::Communicator> communicator_;
  std::optional<RunDirectory> directory_;
  std::optional<checkpoint::Loaded> resumed_;  // on rank 0, until its tensors are in place
  std::string resumed_from_;                   // name of that checkpoint; empty: a fresh start
  std::optional<data::Tokenizer> tokenizer_;   // on rank 0
  TrainState state_;
  Json about_;  // what every checkpoint says of its run: configuration and data digests
  std::optional<optim::ParameterArena> arena_;
  std::optional<model::LanguageModel> model_;
  std::optional<DataParallel> parallel_;
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<data::ValidationSet> validation_;
  std::optional<metrics::JsonlWriter> metrics_;            // on rank 0
  std::optional<metrics::TensorboardWriter> tensorboard_;  // on rank 0
  std::optional<checkpoint::Writer> checkpoints_;          // on the ranks that have something to write
  std::optional<Passes> passes_;
  int64_t global_targets_ = 0;  // target tokens of a step, of all ranks
  double flops_per_token_ = 0;
  Decisions agreed_;             // by all ranks, in the step that was done last
  int64_t saved_at_start_ = -1;  // step of the checkpoint resumed from
  int64_t saved_step_ = -1;      // of the newest snapshot handed to the writer
  Clock::time_point saved_at_ = Clock::now();
};

Trainer::Trainer(config::Config config, const dist::LaunchEnvironment& launched,
                 const std::vector<std::string>& command_line, const Connect& connect)
    : config_(with_absolute_paths(std::move(config))),
      device_(choose_device(config_.run.device, launched)),
      communicator_(connect(launched, device_, std::chrono::seconds(config_.distributed.timeout_seconds))) {
  make_deterministic();
  if (device_.is_cpu()) share_cores(launched.local_world_size);
  // How data is prepared is no part of a training, and its paths tell where a process was started.
  config::Config compared = config_;
  compared.prepare = {};
  expect_same(*communicator_, "the configuration", config::dump(compared), [&](const std::string& first) {
    std::string found;
    for (const std::string& key : config::differences(config::load_text(first, "rank 0", {}), compared))
      found += (found.empty() ? "" : "; ") + key;
    return found;
  });
  settle();
  allocate();
  fill_weights();
  open_data();
  open_outputs(command_line);
}

/// Rank 0 locks the run's directory, looks for its newest checkpoint and settles every automatic value; the
/// others take over what it found.
void Trainer::settle() {
  const Json settled = from_rank_0(*communicator_, "the start of the run", [&]() -> Json {
    directory_.emplace(config_.run);
    log::add_file(directory_->path() + "/" + dist::log_name(0));
    resumed_ = checkpoint::load_newest(directory_->checkpoints());
    if (resumed_ && config_.run.resume == config::Resume::kNever)
      throw UserError(
          "{}: holds a checkpoint of step {} and run.resume is never; choose another run.name or set "
          "run.resume: auto",
          directory_->path(), resumed_->snapshot.step);
    if (resumed_) {
      const bool automatic = !config_.train.micro_batch_sequences;
      const std::string& stored = resumed_->snapshot.state.value("config", "");
      config_ = reconcile(config::load_text(stored, resumed_->directory + "/state.json", {}), config_);
      if (automatic && config_.train.micro_batch_sequences)
        config_.train.micro_batch_sequences =
            fit_micro_batch(config_, *config_.train.micro_batch_sequences, communicator_->world_size());
      state_ = TrainState::from_json(resumed_->snapshot.state);
      resumed_from_ = resumed_->directory;
      // A run that began on a CPU goes on there when nothing else is asked for.
      if (communicator_->world_size() == 1) device_ = choose_device(config_.run.device);
    }
    tokenizer_ = open_tokenizer(config_.data);
    freeze_automatic_values(config_, device_, communicator_->world_size(), tokenizer_);
    return {{"config", config::dump(config_)}, {"state", state_.to_json()}, {"resumed_from", resumed_from_}};
  });
  if (communicator_->device() != device_) communicator_ = dist::make_single_communicator(device_);
  if (!is_first()) {
    directory_.emplace(config_.run, RunDirectory::Role::kGuest);
    log::redirect_to_file(directory_->path() + "/" + dist::log_name(static_cast<int>(communicator_->rank())));
    config_ = config::load_text(settled["config"].get<std::string>(), "rank 0", {});
    state_ = TrainState::from_json(settled["state"]);
    resumed_from_ = settled["resumed_from"].get<std::string>();
  }
  if ((config_.run.device == config::Device::kCuda) != device_.is_cuda())
    throw UserError("run.device: the run began on {}, the ranks of this job are on {}; set run.device",
                    config_.run.device == config::Device::kCuda ? "cuda" : "cpu", device_.str());
}

void Trainer::allocate() {
  const auto specs = model::parameter_specs(config_.model, *config_.model.vocab_size);
  const int64_t num_parameters = model::count_parameters(specs);
  const optim::ParameterArena::Options options{
      .device = device_,
      .compute = compute_dtype(config_.train.precision),
      .training = true,
      .decay_all = config_.optimizer.decay_all,
      .sharding = arena_sharding(*communicator_, config_.distributed.zero, num_parameters)};
  check_host_memory(options, num_parameters);
  arena_.emplace(specs, options);
  model_.emplace(config_.model, *config_.model.vocab_size, arena_->source());
  parallel_.emplace(*arena_, *communicator_, model_->num_layers(), config_.distributed.exchange);
  flops_per_token_ =
      model::training_flops_per_token(config_.model, *config_.model.vocab_size, config_.data.sequence_length);
}

void Trainer::fill_weights() {
  if (!resumed_from_.empty()) {
    restore(resumed_ ? &*resumed_ : nullptr, *arena_, *communicator_);
    saved_step_ = saved_at_start_ = state_.step;
    log::info("resuming from {} (step {}, {} samples consumed)", resumed_from_, state_.step,
              state_.samples_consumed);
    return;
  }
  std::optional<checkpoint::Loaded> source;
  std::function<at::Tensor(const ParameterSpec&)> value = [&](const ParameterSpec& spec) {
    at::Tensor values = at::empty(spec.shape, at::kFloat);
    model::initialize(spec, config_.run.seed, values);
    return values;
  };
  from_rank_0(*communicator_, "the first weights", [&]() -> Json {
    if (!config_.run.init_from) return {};
    source = open_checkpoint(*config_.run.init_from);
    value = weights_of(*source, *arena_);
    log::info("weights start from {}", source->directory);
    return {};
  });
  share_weights(*arena_, *communicator_, value);
}

/// Every rank opens the shards itself; they must be the same ones, and those of the run so far.
void Trainer::open_data() {
  const data::LoaderOptions options =
      loader_options(config_, communicator_->rank(), communicator_->world_size(), state_.samples_consumed);
  loader_ = std::make_unique<data::Loader>(config_.data.train, options);
  if (tokenizer_) check_tokenizer(*loader_, *tokenizer_, *config_.data.tokenizer);
  if (!config_.data.validation.empty())
    validation_ = std::make_unique<data::ValidationSet>(config_.data.validation, config_.evaluation.sequences,
                                                        options.micro_batch_sequences, options);
  const std::string digest = loader_->digest();
  if (resumed_ && resumed_->snapshot.state.value("data_digest", "") != digest)
    throw UserError(
        "data.train: the shards differ from those the run was trained on so far (digest {} instead of {}); "
        "restore them or choose another run.name",
        digest, resumed_->snapshot.state.value("data_digest", ""));
  expect_same(*communicator_, "the training data", digest, [&](const std::string& first) {
    return fmt::format("digest {} instead of {}; every host needs the same shards", digest, first);
  });
  about_ = {{"config", config::dump(config_)},
            {"data_digest", digest},
            {"tokenizer_digest", loader_->tokenizer_digest()}};
  const PassOptions passes = {
      .micro_batches = options.global_batch_sequences / (options.micro_batch_sequences * options.world_size),
      .global_targets = options.global_batch_sequences * options.sequence_length,
      .residuals = config_.metrics.residual_every_steps > 0,
      .recompute = config_.train.recompute,
      .cuda_graph = config_.train.cuda_graph};
  global_targets_ = passes.global_targets;
  passes_.emplace(*model_, *parallel_, passes);
}

void Trainer::open_outputs(const std::vector<std::string>& command_line) {
  from_rank_0(*communicator_, "the run's directory", [&]() -> Json {
    check_space(directory_->checkpoints(), config_.checkpoint, arena_->num_parameters());
    metrics_.emplace(directory_->metrics(), state_.step);
    if (config_.metrics.tensorboard) tensorboard_.emplace(directory_->path() + "/tensorboard");
    checkpoint::Team team;
    if (arena_->is_sharded()) team = checkpoint_team();
    checkpoints_.emplace(directory_->checkpoints(), config_.checkpoint, std::move(team));
    if (resumed_) checkpoints_->adopt(std::filesystem::path(resumed_->directory).filename().string());
    describe_run(command_line);
    return {};
  });
  if (!is_first() && arena_->is_sharded())
    checkpoints_.emplace(directory_->checkpoints(), config_.checkpoint, checkpoint_team());
  resumed_.reset();
}

checkpoint::Team Trainer::checkpoint_team() {
  return {.rank = communicator_->rank(),
          .world_size = communicator_->world_size(),
          .board = communicator_->open_board(),
          .timeout = std::chrono::seconds(config_.distributed.timeout_seconds)};
}

void Trainer::describe_run(const std::vector<std::string>& command_line) {
  const std::string file = directory_->path() + "/environment.json";
  const Json now = describe_environment(device_, communicator_->world_size(), command_line);
  if (state_.step > 0 && std::filesystem::exists(file)) {
    for (const std::string& difference : bit_relevant_differences(read_json(file), now))
      log::warning("the environment changed since the run began, so it is no longer bit-exact: {}",
                   difference);
  }
  // The command line may have names in it that are no UTF-8.
  atomic_write(file, json_text(now, 2) + "\n");
  directory_->write_config(config_);
  int64_t decayed = 0;
  for (const auto& slot : arena_->slots())
    if (slot.spec.decay || config_.optimizer.decay_all) decayed += slot.spec.num_elements();
  const int64_t ranks = communicator_->world_size();
  log::info(
      "{}: {} parameters ({} with weight decay), {} steps of {} tokens, micro-batch {} x {}, {} on {}{}",
      config_.run.name, arena_->num_parameters(), decayed, config_.train.steps, global_targets_,
      *config_.train.micro_batch_sequences, config_.data.sequence_length,
      config_.train.precision == config::Precision::kBfloat16 ? "bfloat16" : "float32", device_.str(),
      ranks == 1 ? "" : fmt::format(", {} ranks, ZeRO-{}", ranks, config_.distributed.zero));
  log::info("memory before activations: {}", arena_->bytes().describe());
  for (const std::string& line : doubtful_settings(config_)) log::warning("{}", line);
  const optim::DecayGroups groups = optim::decay_groups(*arena_, config_.optimizer.decay_all);
  log::info("weight decay {} on: {}", config_.optimizer.weight_decay, groups.decayed);
  log::info("no weight decay on: {}; not trained: {}", groups.not_decayed, groups.not_trained);
}

void Trainer::fill_residuals(metrics::StepRecord& record, const StepSums& sums) const {
  const std::vector<metrics::ResidualSums> layers = merge_statistics(sums.statistics, sums.num_layers);
  if (layers.empty()) return;
  metrics::ResidualSums total = layers.front();
  record.residual_layers.push_back(metrics::finish(layers.front()));
  for (size_t layer = 1; layer < layers.size(); ++layer) {
    total.add(layers[layer]);
    record.residual_layers.push_back(metrics::finish(layers[layer]));
  }
  record.residual = metrics::finish(total);
}

metrics::StepRecord Trainer::step() {
  const auto start = Clock::now();
  metrics::StepRecord record;
  record.step = state_.step + 1;
  const bool residuals =
      config_.metrics.residual_every_steps > 0 && record.step % config_.metrics.residual_every_steps == 0;

  arena_->zero_gradients();
  communicator_->set_step(record.step);
  const StepOutcome outcome = run_step(*passes_, *loader_, residuals);
  const StepSums sums = add_up(outcome, {.stop = signals_.requested(), .minutes_up = minutes_up()}, *arena_,
                               *parallel_, *communicator_);
  record.loss = sums.loss / static_cast<double>(global_targets_);
  record.grad_norm = std::sqrt(sums.squares);
  if (residuals) fill_residuals(record, sums);
  state_.step = record.step;
  agreed_ = sums.decisions;
  update_or_skip(record, state_, saved_step_,
                 {.options = config_.optimizer,
                  .steps = config_.train.steps,
                  .arena = *arena_,
                  .parallel = *parallel_,
                  .communicator = *communicator_});

  state_.samples_consumed += global_targets_ / config_.data.sequence_length;
  state_.tokens += global_targets_;
  record.tokens = state_.tokens;
  record.epoch = outcome.epoch;
  record.skipped_total = state_.skipped_total;
  record.step_milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  record.data_wait_milliseconds = outcome.data_wait_milliseconds;
  record.tokens_per_second = static_cast<double>(global_targets_) / (record.step_milliseconds / 1000);
  record.tokens_per_second_per_gpu =
      record.tokens_per_second / static_cast<double>(communicator_->world_size());
  if (device_.is_cuda())
    record.mfu = metrics::model_flops_utilization(flops_per_token_, record.tokens_per_second_per_gpu);
  record.memory_gib = static_cast<double>(peak_memory_bytes(device_)) / (1 << 30);
  return record;
}

std::optional<metrics::Validation> Trainer::validate() {
  if (!validation_) return std::nullopt;
  parallel_->wait_for_weights();
  return eval::validate(*model_, *validation_, device_,
                        {.rank = communicator_->rank(),
                         .world_size = communicator_->world_size(),
                         .add_up = [this](const at::Tensor& sums) {
                           communicator_->all_reduce_sum(sums, "validation losses");
                         }});
}

void Trainer::write(const metrics::StepRecord& record) {
  const bool due = record.step % config_.metrics.every_steps == 0 || record.residual || record.validation ||
                   record.step == config_.train.steps;
  if (!due || !is_first()) return;
  metrics_->append(record);
  if (tensorboard_) tensorboard_->append(record);
}

void Trainer::save() {
  if (saved_step_ == state_.step) return;
  const at::Tensor masters = parallel_->gather_masters();
  if (checkpoints_) {
    // The metrics up to this step must outlive a crash that comes after the checkpoint is in place.
    if (metrics_) metrics_->sync();
    checkpoints_->save(take_snapshot(*arena_, masters, *communicator_, state_, about_));
  }
  saved_step_ = state_.step;
  saved_at_ = Clock::now();
}

/// Returns when the newest checkpoint is complete, on every rank.
void Trainer::finish_saving() {
  if (checkpoints_) checkpoints_->wait();
  communicator_->barrier("the end of the run");
  communicator_->check();
}

/// A signal that came after the ranks last spoke to each other waits for the end of the next step, unless
/// there is nobody to agree with.
std::optional<ExitCode> Trainer::stop_requested() const {
  return communicator_->world_size() == 1 ? signals_.requested() : agreed_.stop;
}

bool Trainer::minutes_up() const {
  const double minutes = config_.checkpoint.every_minutes;
  return minutes > 0 && Clock::now() - saved_at_ >= std::chrono::duration<double>(60 * minutes);
}

bool Trainer::save_due() const {
  const int64_t every = config_.checkpoint.every_steps;
  return agreed_.minutes_up || (every > 0 && state_.step % every == 0);
}

ExitCode Trainer::run() {
  try {
    return run_steps();
  } catch (...) {
    // Where a run ended belongs into its log, whatever ended it; the caller tells why.
    const int64_t saved = std::max(saved_at_start_, checkpoints_ ? checkpoints_->newest_step() : -1);
    log::error("{}: ends after step {}; {}", config_.run.name, state_.step,
               saved < 0 ? std::string("there is no checkpoint yet")
                         : fmt::format("the newest checkpoint is of step {}", saved));
    throw;
  }
}

ExitCode Trainer::run_steps() {
  if (state_.step >= config_.train.steps) {
    log::info("{}: all {} steps are done; raise train.steps to go on", config_.run.name, config_.train.steps);
    return ExitCode::kDone;
  }
  std::optional<metrics::Progress> progress;
  if (is_first()) progress.emplace(config_.run.name, config_.train.steps, state_.step);
  while (state_.step < config_.train.steps) {
    metrics::StepRecord record = step();
    const bool last = state_.step == config_.train.steps;
    if (last || state_.step % config_.evaluation.every_steps == 0) record.validation = validate();
    write(record);
    if (progress) progress->update(state_.step, metrics::summary(record));
    if (checkpoints_) checkpoints_->check();

    const std::optional<ExitCode> stop = stop_requested();
    if (stop || last || save_due()) save();
    if (stop) {
      finish_saving();
      log::info("stopped by a signal after step {}; the same command goes on from there", state_.step);
      return *stop;
    }
  }
  finish_saving();
  if (tensorboard_) tensorboard_->sync();
  log::info("{}: done, step {}", config_.run.name, state_.step);
  return ExitCode::kDone;
}

}  // namespace

ExitCode train(const config::Config& config, const dist::LaunchEnvironment& launched,
               const std::vector<std::string>& command_line, const Connect& connect) {
  if (config.run.name.empty()) throw UserError("run.name: expected a name for the run, got none");
  if (config.data.train.empty())
    throw UserError("data.train: expected at least one glob of shards, got none; run `osdn prepare`");
  try {
    Trainer trainer(config, launched, command_line, connect);
    return trainer.run();
  } catch (const c10::OutOfMemoryError& failure) {
    throw EnvironmentError(
        "out of GPU memory: lower train.micro_batch_sequences, set train.recompute: block, or "
        "train.cuda_graph: "
        "false, for a graph holds memory of its own ({})",
        failure.what_without_backtrace());
  } catch (const c10::Error& failure) {
    if (!is_out_of_memory(failure)) throw;
    throw EnvironmentError(
        "out of memory: lower train.micro_batch_sequences or set train.recompute: block ({})",
        failure.what_without_backtrace());
  }
}

}  // namespace osdn::train
