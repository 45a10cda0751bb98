#include "train/setup.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/fs.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/retention.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::train {
namespace {

// Tokens of an automatic micro-batch: on a CPU what keeps two cores busy within the cache, on a GPU what
// fills it at 340M parameters with room to spare.
constexpr int64_t kAutoTokensCpu = 4096;
constexpr int64_t kAutoTokensCuda = 8192;

int64_t largest_divisor_within(int64_t value, int64_t limit) {
  for (int64_t candidate = std::min(value, limit); candidate > 1; --candidate)
    if (value % candidate == 0) return candidate;
  return 1;
}

}  // namespace

at::Device choose_device(config::Device wanted, const dist::LaunchEnvironment& launched) {
  const int64_t visible = wanted == config::Device::kCpu ? 0 : num_gpus();
  if (wanted == config::Device::kCuda && visible == 0)
    throw EnvironmentError(
        "run.device: expected a visible GPU for cuda, found none ({}); use run.device: cpu or auto",
        no_gpu_reason());
  if (visible == 0) return at::Device(at::kCPU);
  // A launcher that shows each process its own GPU numbers it 0 for all of them.
  const int64_t index = visible == 1 ? 0 : launched.local_rank;
  if (index >= visible)
    throw EnvironmentError(
        "rank {} wants device {}, {} visible: {} processes on this host; start at most one process a GPU",
        launched.rank, index, visible, launched.local_world_size);
  use_gpu(index);
  return {at::kCUDA, static_cast<at::DeviceIndex>(index)};
}

void share_cores(int64_t processes_on_node) {
  if (processes_on_node <= 1 || std::getenv("OMP_NUM_THREADS")) return;
  at::set_num_threads(static_cast<int>(std::max<int64_t>(1, at::get_num_threads() / processes_on_node)));
}

at::ScalarType compute_dtype(config::Precision precision) {
  return precision == config::Precision::kBfloat16 ? at::kBFloat16 : at::kFloat;
}

void freeze_automatic_values(config::Config& config, at::Device device, int64_t world_size,
                             const std::optional<data::Tokenizer>& tokenizer) {
  config.run.device = device.is_cuda() ? config::Device::kCuda : config::Device::kCpu;
  if (config.train.precision == config::Precision::kAuto)
    config.train.precision = device.is_cuda() ? config::Precision::kBfloat16 : config::Precision::kFloat32;
  if (config.train.cuda_graph.value_or(false) && !device.is_cuda())
    throw UserError("train.cuda_graph: expected false or auto on {}, got true", device.str());

  if (!config.model.vocab_size) {
    if (!tokenizer)
      throw UserError("model.vocab_size: expected a number, or data.tokenizer to take it from; got neither");
    config.model.vocab_size = tokenizer->vocab_size();
  } else if (tokenizer && *config.model.vocab_size < tokenizer->vocab_size()) {
    throw UserError("model.vocab_size: expected at least the {} pieces of the tokenizer {}, got {}",
                    tokenizer->vocab_size(), *config.data.tokenizer, *config.model.vocab_size);
  }

  const int64_t length = config.data.sequence_length;
  const int64_t sequences = config.train.global_batch_tokens / length;
  if (sequences % world_size != 0)
    throw UserError(
        "train.global_batch_tokens: {} tokens are {} sequences of {}, which {} processes cannot share "
        "equally",
        config.train.global_batch_tokens, sequences, length, world_size);
  const int64_t share = sequences / world_size;
  if (!config.train.micro_batch_sequences) {
    const int64_t limit =
        std::max<int64_t>(1, (device.is_cuda() ? kAutoTokensCuda : kAutoTokensCpu) / length);
    config.train.micro_batch_sequences = largest_divisor_within(share, limit);
  }
  if (share % *config.train.micro_batch_sequences != 0)
    throw UserError(
        "train.micro_batch_sequences: expected a divisor of the {} sequences a process takes of each step "
        "(global_batch_tokens {} / sequence_length {} / {} processes), got {}",
        share, config.train.global_batch_tokens, length, world_size, *config.train.micro_batch_sequences);
}

int64_t fit_micro_batch(const config::Config& config, int64_t micro_batch, int64_t world_size) {
  const int64_t share = config.train.global_batch_tokens / config.data.sequence_length / world_size;
  return share < 1 ? micro_batch : std::gcd(share, micro_batch);
}

void check_space(const std::string& checkpoints_directory, const config::Checkpoint& options,
                 int64_t num_parameters) {
  // Those of an earlier start lie there already; one more than are kept is there while it is written.
  const int64_t missing =
      std::max<int64_t>(1, options.keep_last + 1 - checkpoint::num_checkpoints(checkpoints_directory));
  const uint64_t needed = checkpoint::checkpoint_bytes(num_parameters) * static_cast<uint64_t>(missing);
  const uint64_t available = free_space_bytes(checkpoints_directory);
  if (available < needed)
    throw EnvironmentError(
        "{}: not enough space: {} more checkpoint{} (checkpoint.keep_last: {}) need {} bytes ({:.2f} GiB), "
        "available {} ({:.2f} GiB); free some, or lower checkpoint.keep_last",
        checkpoints_directory, missing, missing == 1 ? "" : "s", options.keep_last, needed,
        static_cast<double>(needed) / (1 << 30), available, static_cast<double>(available) / (1 << 30));
}

std::vector<std::string> doubtful_settings(const config::Config& config) {
  std::vector<std::string> lines;
  if (config.optimizer.warmup_steps >= config.train.steps)
    lines.push_back(fmt::format(
        "optimizer.warmup_steps: {} of train.steps = {}: the learning rate never falls, and reaches its peak "
        "at the last step at best",
        config.optimizer.warmup_steps, config.train.steps));
  std::set<std::string> trained;
  for (const config::WeightedSource& source : config.data.train)
    for (const std::string& path : glob_paths(source.path))
      trained.insert(std::filesystem::weakly_canonical(path).string());
  for (const std::string& glob : config.data.validation)
    for (const std::string& path : glob_paths(glob))
      if (trained.count(std::filesystem::weakly_canonical(path).string()) > 0)
        lines.push_back(
            fmt::format("data.validation: {} is trained on as well, so its loss does not tell how the model "
                        "does on other text",
                        path));
  return lines;
}

void check_host_memory(const optim::ParameterArena::Options& arena, int64_t num_parameters) {
  if (!arena.device.is_cpu()) return;  // a GPU's own allocator refuses before anything is lost
  const bool copied = arena.compute != at::kFloat;
  const double whole = copied ? 4 + 2 : 4 + 4;  // a gradient and what the ops read, in bytes
  const double shared = copied ? 4 + 8 : 8;     // master and moments, or moments alone
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  const double ranks = arena.sharding.shared ? static_cast<double>(arena.sharding.world_size) : 1;
  const double needed = (whole + shared / ranks) * static_cast<double>(num_parameters) / kGib;
  const double present = static_cast<double>(host_memory_bytes()) / kGib;
  // The kernel promises more memory than there is, and kills whoever comes to use it.
  if (needed > present)
    throw EnvironmentError(
        "out of memory: weights, gradients and moments of {} parameters need {:.1f} GiB before any "
        "activation, this machine has {:.1f} GiB (make the model smaller, or train it on a machine with more "
        "memory)",
        num_parameters, needed, present);
}

std::optional<data::Tokenizer> open_tokenizer(const config::Data& data) {
  if (!data.tokenizer) return std::nullopt;
  return data::Tokenizer::load(*data.tokenizer);
}

data::LoaderOptions loader_options(const config::Config& config, int64_t rank, int64_t world_size,
                                   int64_t samples_consumed) {
  return {.sequence_length = config.data.sequence_length,
          .documents = config.data.documents,
          .max_document_tokens = config.data.max_document_tokens,
          .seed = config.run.seed,
          .global_batch_sequences = config.train.global_batch_tokens / config.data.sequence_length,
          .micro_batch_sequences = config.train.micro_batch_sequences.value(),
          .rank = rank,
          .world_size = world_size,
          .samples_consumed = samples_consumed,
          .vocab_size = config.model.vocab_size.value()};
}

void check_tokenizer(const data::Loader& loader, const data::Tokenizer& tokenizer, const std::string& path) {
  if (loader.tokenizer_digest() != tokenizer.digest())
    throw UserError(
        "data.tokenizer: {} has digest {}, but the shards were made with the tokenizer of digest {}; name "
        "the "
        "tokenizer.model that `osdn prepare` wrote beside the shards",
        path, tokenizer.digest(), loader.tokenizer_digest());
}

}  // namespace osdn::train
