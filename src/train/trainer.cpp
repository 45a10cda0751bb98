#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/retention.h"
#include "config/yaml.h"
#include "data/loader.h"
#include "dist/communicator.h"
#include "eval/validation.h"
#include "metrics/jsonl_writer.h"
#include "metrics/progress.h"
#include "metrics/tensorboard_writer.h"
#include "metrics/throughput.h"
#include "model/init.h"
#include "model/lm.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/decay_groups.h"
#include "optim/parameter_arena.h"
#include "optim/schedule.h"
#include "tensor/device.h"
#include "tensor/torch.h"
#include "train/environment.h"
#include "train/run_directory.h"
#include "train/setup.h"
#include "train/signals.h"
#include "train/snapshot.h"
#include "train/state.h"
#include "train/step.h"

namespace osdn::train {
namespace {

using Clock = std::chrono::steady_clock;

class Trainer {
 public:
  Trainer(config::Config config, const std::vector<std::string>& command_line);
  ExitCode run();

 private:
  ExitCode run_steps();
  void start_fresh();
  void resume(const checkpoint::Loaded& loaded);
  void check_space() const;
  void describe_run(const std::vector<std::string>& command_line);

  metrics::StepRecord step();
  void update_weights(metrics::StepRecord& record);
  void count_skipped(const metrics::StepRecord& record, const std::string& culprit);
  void fill_residuals(metrics::StepRecord& record, const std::vector<at::Tensor>& statistics) const;
  void write(const metrics::StepRecord& record);
  void save();

  SignalGuard signals_;  // first: a signal during set-up is honoured after the first step
  config::Config config_;
  RunDirectory directory_;
  std::unique_ptr<dist::Communicator> communicator_;
  at::Device device_;
  TrainState state_;
  Json about_;  // what every checkpoint says of its run: configuration and data digests
  std::optional<optim::ParameterArena> arena_;
  std::optional<model::LanguageModel> model_;
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<data::ValidationSet> validation_;
  std::optional<metrics::JsonlWriter> metrics_;
  std::optional<metrics::TensorboardWriter> tensorboard_;
  std::optional<checkpoint::Writer> checkpoints_;
  StepPlan plan_;
  double flops_per_token_ = 0;
  int64_t saved_at_start_ = -1;  // step of the checkpoint resumed from
  int64_t saved_step_ = -1;      // of the newest snapshot handed to the writer
  Clock::time_point saved_at_ = Clock::now();
};

Trainer::Trainer(config::Config config, const std::vector<std::string>& command_line)
    : config_(with_absolute_paths(std::move(config))),
      directory_(config_.run),
      communicator_(dist::make_communicator(config_.distributed, dist::world_from_environment())),
      device_(choose_device(config_.run.device)) {
  log::add_file(directory_.path() + "/log.txt");
  make_deterministic();

  std::optional<checkpoint::Loaded> newest = checkpoint::load_newest(directory_.checkpoints());
  if (newest && config_.run.resume == config::Resume::kNever)
    throw UserError(
        "{}: holds a checkpoint of step {} and run.resume is never; choose another run.name or set "
        "run.resume: auto",
        directory_.path(), newest->snapshot.step);
  if (newest) {
    config_ = reconcile(
        config::load_text(newest->snapshot.state.value("config", ""), newest->directory + "/state.json", {}),
        config_);
    device_ = choose_device(config_.run.device);
  }
  const std::optional<data::Tokenizer> tokenizer = open_tokenizer(config_.data);
  freeze_automatic_values(config_, device_, communicator_->world_size(), tokenizer);

  const auto specs = model::parameter_specs(config_.model, *config_.model.vocab_size);
  arena_.emplace(specs, optim::ParameterArena::Options{.device = device_,
                                                       .compute = compute_dtype(config_.train.precision),
                                                       .training = true,
                                                       .decay_all = config_.optimizer.decay_all});
  model_.emplace(config_.model, *config_.model.vocab_size, arena_->source());
  flops_per_token_ = model::training_flops_per_token(config_.model, *config_.model.vocab_size);

  if (newest)
    resume(*newest);
  else
    start_fresh();

  const data::LoaderOptions options =
      loader_options(config_, communicator_->rank(), communicator_->world_size(), state_.samples_consumed);
  loader_ = std::make_unique<data::Loader>(config_.data.train, options);
  if (tokenizer) check_tokenizer(*loader_, *tokenizer, *config_.data.tokenizer);
  if (!config_.data.validation.empty())
    validation_ = std::make_unique<data::ValidationSet>(config_.data.validation, config_.evaluation.sequences,
                                                        options.micro_batch_sequences, options);
  const std::string digest = loader_->digest();
  if (newest && newest->snapshot.state.value("data_digest", "") != digest)
    throw UserError(
        "data.train: the shards differ from those the run was trained on so far (digest {} instead of {}); "
        "restore them or choose another run.name",
        digest, newest->snapshot.state.value("data_digest", ""));
  about_ = {{"config", config::dump(config_)},
            {"data_digest", digest},
            {"tokenizer_digest", loader_->tokenizer_digest()}};

  plan_ = {
      .micro_batches = options.global_batch_sequences / (options.micro_batch_sequences * options.world_size),
      .global_targets = options.global_batch_sequences * options.sequence_length,
      .recompute = config_.train.recompute};
  check_space();
  metrics_.emplace(directory_.metrics(), state_.step);
  if (config_.metrics.tensorboard) tensorboard_.emplace(directory_.path() + "/tensorboard");
  checkpoints_.emplace(directory_.checkpoints(), config_.checkpoint);
  if (newest) checkpoints_->adopt(std::filesystem::path(newest->directory).filename().string());
  describe_run(command_line);
}

void Trainer::start_fresh() {
  for (const optim::ParameterArena::Slot& slot : arena_->slots()) {
    at::Tensor values = at::empty(slot.spec.shape, at::kFloat);
    model::initialize(slot.spec, config_.run.seed, values);
    arena_->master(slot.spec.name).copy_(values);
  }
  arena_->refresh_compute_copy();
  if (config_.run.init_from) {
    const checkpoint::Loaded source = open_checkpoint(*config_.run.init_from);
    restore_weights(source, *arena_);
    log::info("weights start from {}", source.directory);
  }
}

void Trainer::resume(const checkpoint::Loaded& loaded) {
  restore(loaded, *arena_);
  state_ = TrainState::from_json(loaded.snapshot.state);
  saved_step_ = saved_at_start_ = state_.step;
  log::info("resuming from {} (step {}, {} samples consumed)", loaded.directory, state_.step,
            state_.samples_consumed);
}

void Trainer::check_space() const {
  // Those of an earlier start lie there already; one more than are kept is there while it is written.
  const int64_t missing = std::max<int64_t>(
      1, config_.checkpoint.keep_last + 1 - checkpoint::num_checkpoints(directory_.checkpoints()));
  const uint64_t needed =
      checkpoint::checkpoint_bytes(arena_->num_parameters()) * static_cast<uint64_t>(missing);
  const uint64_t available = free_space_bytes(directory_.checkpoints());
  if (available < needed)
    throw EnvironmentError(
        "{}: not enough space: {} more checkpoint{} (checkpoint.keep_last: {}) need {} bytes ({:.2f} GiB), "
        "available {} ({:.2f} GiB); free some, or lower checkpoint.keep_last",
        directory_.checkpoints(), missing, missing == 1 ? "" : "s", config_.checkpoint.keep_last, needed,
        static_cast<double>(needed) / (1 << 30), available, static_cast<double>(available) / (1 << 30));
}

void Trainer::describe_run(const std::vector<std::string>& command_line) {
  const std::string file = directory_.path() + "/environment.json";
  const Json now = describe_environment(device_, communicator_->world_size(), command_line);
  if (state_.step > 0 && std::filesystem::exists(file)) {
    for (const std::string& difference : bit_relevant_differences(read_json(file), now))
      log::warning("the environment changed since the run began, so it is no longer bit-exact: {}",
                   difference);
  }
  atomic_write(file, now.dump(2) + "\n");
  directory_.write_config(config_);
  int64_t decayed = 0;
  for (const auto& slot : arena_->slots())
    if (slot.spec.decay || config_.optimizer.decay_all) decayed += slot.spec.num_elements();
  log::info("{}: {} parameters ({} with weight decay), {} steps of {} tokens, micro-batch {} x {}, {} on {}",
            config_.run.name, arena_->num_parameters(), decayed, config_.train.steps, plan_.global_targets,
            *config_.train.micro_batch_sequences, config_.data.sequence_length,
            config_.train.precision == config::Precision::kBfloat16 ? "bfloat16" : "float32", device_.str());
  const optim::DecayGroups groups = optim::decay_groups(*arena_, config_.optimizer.decay_all);
  log::info("weight decay {} on: {}", config_.optimizer.weight_decay, groups.decayed);
  log::info("no weight decay on: {}; not trained: {}", groups.not_decayed, groups.not_trained);
}

void Trainer::count_skipped(const metrics::StepRecord& record, const std::string& culprit) {
  // A finite gradient is skipped when its squares overflow fp32.
  const std::string where = !culprit.empty()             ? "the gradient of " + culprit
                            : std::isfinite(record.loss) ? "the square of the gradient"
                                                         : "the loss";
  const std::string last_good = saved_step_ < 0
                                    ? std::string("there is no checkpoint yet")
                                    : fmt::format("the last good checkpoint is step {}", saved_step_);
  if (!config_.optimizer.skip_nonfinite)
    throw UserError(
        "step {}: {} is not finite (loss {}, gradient norm {}) and optimizer.skip_nonfinite is false; {}",
        record.step, where, record.loss, record.grad_norm, last_good);
  ++state_.skipped_total;
  ++state_.skipped_in_row;
  log::warning("step {}: {} is not finite (loss {}, gradient norm {}): the update is skipped ({} in a row)",
               record.step, where, record.loss, record.grad_norm, state_.skipped_in_row);
  if (state_.skipped_in_row >= config_.optimizer.max_skipped_in_row)
    throw UserError(
        "step {}: {} steps in a row were skipped for non-finite values (optimizer.max_skipped_in_row); {}; "
        "lower "
        "optimizer.learning_rate or optimizer.clip_norm",
        record.step, state_.skipped_in_row, last_good);
}

void Trainer::update_weights(metrics::StepRecord& record) {
  record.grad_norm = optim::gradient_norm(*arena_);
  record.learning_rate = optim::learning_rate(config_.optimizer, config_.train.steps, record.step);
  const double factor = optim::clip_factor(record.grad_norm, config_.optimizer.clip_norm);
  record.clipped = factor < 1.0;
  record.skipped = !optim::is_usable_norm(record.grad_norm * factor) || !std::isfinite(record.loss);
  if (record.skipped) {
    count_skipped(record, optim::first_nonfinite(*arena_));
    return;
  }
  state_.skipped_in_row = 0;
  ++state_.updates;
  optim::adamw_step(*arena_,
                    {.beta1 = config_.optimizer.betas[0],
                     .beta2 = config_.optimizer.betas[1],
                     .eps = config_.optimizer.eps,
                     .weight_decay = config_.optimizer.weight_decay},
                    record.learning_rate, state_.updates, factor);
}

void Trainer::fill_residuals(metrics::StepRecord& record, const std::vector<at::Tensor>& statistics) const {
  std::vector<metrics::ResidualSums> layers = merge_statistics(statistics);
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
  const StepOutcome outcome = run_step(*model_, *loader_, plan_, device_, residuals);
  communicator_->all_reduce_sum(arena_->gradients(), "gradients");
  communicator_->all_reduce_sum(outcome.loss_sum, "loss");
  record.loss = outcome.loss_sum.item<double>() / static_cast<double>(plan_.global_targets);
  if (residuals) fill_residuals(record, outcome.statistics);
  state_.step = record.step;
  update_weights(record);
  synchronize(device_);

  state_.samples_consumed += plan_.global_targets / config_.data.sequence_length;
  state_.tokens += plan_.global_targets;
  record.tokens = state_.tokens;
  record.epoch = outcome.epoch;
  record.skipped_total = state_.skipped_total;
  record.step_milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  record.data_wait_milliseconds = outcome.data_wait_milliseconds;
  record.tokens_per_second = static_cast<double>(plan_.global_targets) / (record.step_milliseconds / 1000);
  record.tokens_per_second_per_gpu =
      record.tokens_per_second / static_cast<double>(communicator_->world_size());
  if (device_.is_cuda())
    record.mfu = metrics::model_flops_utilization(flops_per_token_, record.tokens_per_second_per_gpu);
  record.memory_gib = static_cast<double>(peak_memory_bytes(device_)) / (1 << 30);
  return record;
}

void Trainer::write(const metrics::StepRecord& record) {
  const bool due = record.step % config_.metrics.every_steps == 0 || record.residual || record.validation ||
                   record.step == config_.train.steps;
  if (!due) return;
  metrics_->append(record);
  if (tensorboard_) tensorboard_->append(record);
}

void Trainer::save() {
  if (saved_step_ == state_.step) return;
  // The metrics up to this step must outlive a crash that comes after the checkpoint is in place.
  metrics_->sync();
  checkpoints_->save(take_snapshot(*arena_, state_, about_));
  saved_step_ = state_.step;
  saved_at_ = Clock::now();
}

ExitCode Trainer::run() {
  try {
    return run_steps();
  } catch (...) {
    // Where a run ended belongs into its log, whatever ended it; the caller tells why.
    const int64_t saved = std::max(saved_at_start_, checkpoints_->newest_step());
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
  metrics::Progress progress(config_.run.name, config_.train.steps, state_.step);
  while (state_.step < config_.train.steps) {
    metrics::StepRecord record = step();
    const bool last = state_.step == config_.train.steps;
    if (validation_ && (last || state_.step % config_.evaluation.every_steps == 0))
      record.validation = eval::validate(*model_, *validation_, device_);
    write(record);
    progress.update(state_.step, metrics::summary(record));
    checkpoints_->check();

    const std::optional<ExitCode> stop = signals_.requested();
    const bool minutes_up =
        config_.checkpoint.every_minutes > 0 &&
        Clock::now() - saved_at_ >= std::chrono::duration<double>(60 * config_.checkpoint.every_minutes);
    const bool steps_up =
        config_.checkpoint.every_steps > 0 && state_.step % config_.checkpoint.every_steps == 0;
    if (stop || last || steps_up || minutes_up) save();
    if (stop) {
      checkpoints_->wait();
      log::info("stopped by a signal after step {}; the same command goes on from there", state_.step);
      return *stop;
    }
  }
  checkpoints_->wait();
  if (tensorboard_) tensorboard_->sync();
  log::info("{}: done, step {}", config_.run.name, state_.step);
  return ExitCode::kDone;
}

}  // namespace

ExitCode train(const config::Config& config, const std::vector<std::string>& command_line) {
  if (config.run.name.empty()) throw UserError("run.name: expected a name for the run, got none");
  if (config.data.train.empty())
    throw UserError("data.train: expected at least one glob of shards, got none; run `osdn prepare`");
  try {
    Trainer trainer(config, command_line);
    return trainer.run();
  } catch (const c10::OutOfMemoryError& failure) {
    throw EnvironmentError(
        "out of GPU memory: lower train.micro_batch_sequences or set train.recompute: block ({})",
        failure.what_without_backtrace());
  }
}

}  // namespace osdn::train
