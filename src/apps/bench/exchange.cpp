#include "apps/bench/exchange.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "dist/communicator.h"
#include "model/init.h"
#include "model/lm.h"
#include "optim/clip.h"
#include "optim/parameter_arena.h"
#include "tensor/device.h"
#include "tensor/torch.h"
#include "train/data_parallel.h"
#include "train/setup.h"
#include "train/snapshot.h"

namespace osdn::bench {
namespace exchange_detail {

using Clock = std::chrono::steady_clock;
using Range = optim::ParameterArena::Range;

constexpr int64_t kAlone = 12;  // measurements of the exchange by itself

class Omitted : public dist::PendingCollective {
 public:
  void wait() override {}
};

/// What of a step's exchange takes place.
struct Moves {
  bool gradients = true;
  bool weights = true;
};

/// The job's communicator, of which what is started through it can be left out.
class Switched : public dist::Communicator {
 public:
  explicit Switched(dist::Communicator& whole) : whole_(whole) {}
  void move(Moves moves) { moves_ = moves; }

  int64_t rank() const override { return whole_.rank(); }
  int64_t world_size() const override { return whole_.world_size(); }
  at::Device device() const override { return whole_.device(); }
  bool share(const std::vector<at::Tensor>& arenas) override { return whole_.share(arenas); }
  void check() override { whole_.check(); }
  std::unique_ptr<dist::Board> open_board() override { return whole_.open_board(); }

 protected:
  std::unique_ptr<dist::PendingCollective> launch(const dist::Collective& collective) override {
    const bool weights = collective.kind == dist::CollectiveKind::kAllGather;
    if (weights ? moves_.weights : moves_.gradients) return whole_.start(collective);
    return std::make_unique<Omitted>();
  }

 private:
  dist::Communicator& whole_;
  Moves moves_;
};

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// What a rank brings to every step and what it keeps: the trainer's, with random tokens.
class Job {
 public:
  Job(const config::Config& config, dist::Communicator& communicator)
      : config_(config),
        communicator_(communicator),
        switched_(communicator),
        specs_(model::parameter_specs(config.model, *config.model.vocab_size)),
        arena_(specs_, {.device = communicator.device(),
                        .compute = train::compute_dtype(config.train.precision),
                        .training = true,
                        .decay_all = config.optimizer.decay_all,
                        .sharding = train::arena_sharding(communicator, config.distributed.zero,
                                                          model::count_parameters(specs_))}),
        model_(config.model, *config.model.vocab_size, arena_.source()),
        parallel_(arena_, switched_, model_.num_layers(), config.distributed.exchange) {
    const int64_t length = config.data.sequence_length;
    const int64_t rows = *config.train.micro_batch_sequences;
    const at::Generator random = at::detail::createCPUGenerator(static_cast<uint64_t>(communicator.rank()));
    const at::Tensor tokens = at::randint(0, *config.model.vocab_size, {2, rows * length}, random, at::kLong)
                                  .to(arena_.masters().device());
    ids_ = tokens[0];
    targets_ = tokens[1];
    sequences_ = ops::Sequences::equal(rows, length, communicator.device());
  }

  int64_t parameters() const { return arena_.num_parameters(); }
  int64_t weight_bytes() const { return arena_.num_parameters() * weights().element_size(); }

  /// Every rank sends its number and one more; what arrives must be the sum, or each rank's own.
  void check() {
    const double own = static_cast<double>(communicator_.rank() + 1);
    const auto world = static_cast<double>(communicator_.world_size());
    arena_.gradients().fill_(own);
    move_gradients();
    for (const auto& range : arena_.owned())
      expect(part(arena_.gradients(), range), world * (world + 1) / 2, "a sum of gradients");
    if (!arena_.is_sharded()) return;
    for (const Range& bucket : arena_.buckets()) own_part(bucket, communicator_.rank()).fill_(own);
    move_weights();
    for (const Range& bucket : arena_.buckets())
      for (int64_t rank = 0; rank < communicator_.world_size(); ++rank)
        expect(own_part(bucket, rank), static_cast<double>(rank + 1), "gathered weights");
  }

  void move_gradients() { parallel_.finish_gradients(); }
  void move_weights() {
    parallel_.gather_weights();
    parallel_.wait_for_weights();
  }

  /// Median of the time of `work`, which all ranks begin together.
  double time(const std::function<void()>& work) {
    std::vector<double> samples;
    for (int64_t i = 0; i <= kAlone; ++i) {
      communicator_.barrier("the start of a measurement");
      synchronize(communicator_.device());
      const auto begin = Clock::now();
      work();
      synchronize(communicator_.device());
      if (i > 0) samples.push_back(milliseconds_since(begin));
    }
    double slowest = 0;
    const at::Tensor own = at::full({1}, median(samples), at::kDouble).to(communicator_.device());
    for (const std::vector<double>& of_rank : train::exchange(communicator_, own, "times"))
      slowest = std::max(slowest, of_rank.front());
    return slowest;
  }

  /// Weights of a run that begins; moments as they are, zero.
  void initialize() {
    train::share_weights(arena_, communicator_, [this](const ParameterSpec& spec) {
      at::Tensor values = at::empty(spec.shape, at::kFloat);
      model::initialize(spec, config_.run.seed, values);
      return values;
    });
  }

  /// Times from the end of one step's decisions to the next's, without the first steps.
  std::vector<double> run_steps(int64_t steps, Moves moves) {
    switched_.move(moves);
    std::vector<double> samples;
    auto last = Clock::now();
    for (int64_t i = 0; i < steps + 2; ++i) {
      step();
      if (i > 1) samples.push_back(milliseconds_since(last));
      last = Clock::now();
    }
    parallel_.wait_for_weights();
    synchronize(communicator_.device());
    switched_.move({});
    return samples;
  }

 private:
  static at::Tensor part(const at::Tensor& arena, const Range& range) {
    return arena.narrow(0, range.begin, range.size());
  }
  const at::Tensor& weights() const {
    return arena_.compute_copy().defined() ? arena_.compute_copy() : arena_.masters();
  }
  at::Tensor own_part(const Range& bucket, int64_t rank) const {
    const int64_t size = bucket.size() / communicator_.world_size();
    return weights().narrow(0, bucket.begin + rank * size, size);
  }
  void expect(const at::Tensor& values, double value, const char* what) const {
    if (!values.eq(value).all().item<bool>())
      throw InternalError("rank {} of {}: {}: expected {} in every element, got others", communicator_.rank(),
                          communicator_.world_size(), what, value);
  }

  void step() {
    communicator_.set_step(++updates_);
    arena_.zero_gradients();
    parallel_.begin_passes();
    model::ForwardCall call{
        .sequences = sequences_, .recompute = config_.train.recompute, .hooks = parallel_.hooks(true)};
    const at::Tensor loss = model_.loss(ids_, targets_, call);
    const auto targets = static_cast<double>(targets_.numel() * communicator_.world_size());
    torch::autograd::backward({loss / targets}, {});
    parallel_.finish_gradients();
    const at::Tensor own =
        at::cat({loss.detach().to(at::kDouble).view({1}), optim::gradient_squares(arena_)});
    train::exchange(communicator_, own, "losses and norms of the step");
    // So small a rate that weights stay what they were, whatever is summed up.
    parallel_.update({}, 1e-9, updates_, 1.0);
  }

  const config::Config& config_;
  dist::Communicator& communicator_;
  Switched switched_;
  std::vector<ParameterSpec> specs_;
  optim::ParameterArena arena_;
  model::LanguageModel model_;
  train::DataParallel parallel_;
  at::Tensor ids_;      // [rows * T]
  at::Tensor targets_;  // [rows * T]
  ops::SequencesPtr sequences_;
  int64_t updates_ = 0;
};

}  // namespace exchange_detail

ExchangeTimes measure_exchange(config::Config config, const dist::LaunchEnvironment& launched,
                               int64_t steps) {
  namespace detail = exchange_detail;
  if (launched.world_size < 2)
    throw UserError("bench exchange: expected at least two processes, got one; give --processes 2");
  const at::Device device = train::choose_device(config.run.device, launched);
  make_deterministic();
  if (device.is_cpu()) train::share_cores(launched.local_world_size);
  train::freeze_automatic_values(config, device, launched.world_size, train::open_tokenizer(config.data));
  const auto communicator =
      dist::make_communicator(launched, device, std::chrono::seconds(config.distributed.timeout_seconds));
  detail::Job job(config, *communicator);
  job.check();
  ExchangeTimes times = {.parameters = job.parameters(),
                         .ranks = launched.world_size,
                         .sequences = *config.train.micro_batch_sequences};
  times.gradients_ms = job.time([&] { job.move_gradients(); });
  if (config.distributed.zero == 1) times.weights_ms = job.time([&] { job.move_weights(); });
  const double share = static_cast<double>(times.ranks - 1) / static_cast<double>(times.ranks);
  // A sum that all ranks receive crosses the link twice, there and back.
  const double crossings = config.distributed.zero == 1 ? share : 2 * share;
  times.gradients_gb_per_s = crossings * 4e-6 * static_cast<double>(times.parameters) / times.gradients_ms;
  if (times.weights_ms > 0)
    times.weights_gb_per_s = share * 1e-6 * static_cast<double>(job.weight_bytes()) / times.weights_ms;
  job.initialize();
  // In turn, so that a GPU that warms up slows both.
  struct Kind {
    detail::Moves moves;
    double& result;
    std::vector<double> samples = {};
  };
  Kind kinds[] = {{.moves = {}, .result = times.step_ms},
                  {.moves = {.gradients = true, .weights = false}, .result = times.step_gradients_ms},
                  {.moves = {.gradients = false, .weights = false}, .result = times.step_alone_ms}};
  constexpr int64_t kTurns = 3;
  for (int64_t turn = 0; turn < kTurns; ++turn)
    for (Kind& kind : kinds) {
      const auto samples = job.run_steps((steps + kTurns - 1) / kTurns, kind.moves);
      kind.samples.insert(kind.samples.end(), samples.begin(), samples.end());
    }
  for (const Kind& kind : kinds) kind.result = detail::median(kind.samples);
  communicator->barrier("the end of the measurements");
  communicator->check();
  return times;
}

}  // namespace osdn::bench
