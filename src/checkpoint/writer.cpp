#include <atomic>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/optimizer_shard.h"
#include "checkpoint/retention.h"
#include "checkpoint/safetensors.h"
#include "tensor/torch.h"

namespace osdn::checkpoint {
namespace writer_detail {

// Manifest, directory entries and the file systems' own rounding.
constexpr uint64_t kSlackBytes = uint64_t{64} << 10;

/// Everything that goes into the files, taken from the snapshot without copying a tensor.
struct Content {
  int64_t step = 0;
  TensorList weights;
  std::map<std::string, std::string> metadata;
  std::vector<MomentSlice> slices;
  std::string state;
  ShardPlace place() const { return {.step = step, .rank = 0, .world_size = 1}; }
};

void check_tensor(const NamedTensor& tensor) {
  OSDN_ASSERT(tensor.value.defined() && tensor.value.device().is_cpu() && tensor.value.is_contiguous() &&
                  tensor.value.scalar_type() == at::kFloat,
              "checkpoint: {} must be a contiguous float32 CPU tensor", tensor.name);
}

Content to_content(const Snapshot& snapshot) {
  OSDN_ASSERT(snapshot.exp_avg.size() == snapshot.weights.size() &&
                  snapshot.exp_avg_sq.size() == snapshot.weights.size(),
              "checkpoint: {} weights, {} and {} moments", snapshot.weights.size(), snapshot.exp_avg.size(),
              snapshot.exp_avg_sq.size());
  OSDN_ASSERT(snapshot.step >= 0, "checkpoint of step {}", snapshot.step);
  Content content;
  content.step = snapshot.step;
  content.metadata = {{"format", "pt"}, {"step", std::to_string(snapshot.step)}};
  std::map<std::string, at::Tensor> second;
  for (const NamedTensor& tensor : snapshot.exp_avg_sq) second[tensor.name] = tensor.value;
  std::map<std::string, at::Tensor> first;
  for (const NamedTensor& tensor : snapshot.exp_avg) first[tensor.name] = tensor.value;
  for (const NamedTensor& weight : snapshot.weights) {
    const NamedTensor exp_avg = {weight.name, first[weight.name]};
    const NamedTensor exp_avg_sq = {weight.name, second[weight.name]};
    for (const NamedTensor* tensor : {&weight, &exp_avg, &exp_avg_sq}) check_tensor(*tensor);
    OSDN_ASSERT(
        exp_avg.value.sizes() == weight.value.sizes() && exp_avg_sq.value.sizes() == weight.value.sizes(),
        "checkpoint: {}: moments of another shape", weight.name);
    content.weights.emplace_back(weight.name, weight.value);
    content.slices.push_back({.name = weight.name,
                              .begin = 0,
                              .end = weight.value.numel(),
                              .exp_avg = exp_avg.value,
                              .exp_avg_sq = exp_avg_sq.value});
  }
  Json state = Json::object({{"step", snapshot.step}});
  for (const auto& [key, value] : snapshot.state.items()) state[key] = value;
  OSDN_ASSERT(state["step"] == snapshot.step, "checkpoint of step {}: its state is of another",
              snapshot.step);
  // Paths in the state may hold any bytes; a replacement character there must not cost the checkpoint.
  content.state = state.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return content;
}

uint64_t needed_bytes(const Content& content) {
  return safetensors_bytes(content.weights, content.metadata) +
         optimizer_shard_bytes(content.place(), content.slices) + content.state.size() + kSlackBytes;
}

void check_space(const std::string& directory, const Content& content) {
  const uint64_t needed = needed_bytes(content);
  const uint64_t available = free_space_bytes(directory);
  if (available < needed)
    throw EnvironmentError(
        "{}: not enough space for the checkpoint of step {}: needed {} bytes ({:.2f} GiB), available {} "
        "({:.2f} GiB); "
        "free some, or lower checkpoint.keep_last",
        directory, content.step, needed, double(needed) / (1 << 30), available,
        double(available) / (1 << 30));
}

ManifestFile write_text(const std::string& directory, const std::string& name, const std::string& text) {
  File file = File::create(directory + "/" + name);
  file.write(text);
  file.sync();
  return {name, text.size(), digest(text).hex()};
}

ManifestFile entry_of(const std::string& directory, const std::string& name, const Digest128& found) {
  return {name, std::filesystem::file_size(directory + "/" + name), found.hex()};
}

/// All files of the checkpoint, durable, in a directory that has a temporary name.
void stage(const std::string& staged, const Content& content) {
  remove_tree(staged);
  create_directories(staged);
  Manifest manifest;
  manifest.step = content.step;
  manifest.num_optimizer_shards = 1;
  manifest.files.push_back(entry_of(
      staged, kModelFile, write_safetensors(staged + "/" + kModelFile, content.weights, content.metadata)));
  manifest.files.push_back(write_text(staged, kStateFile, content.state));
  const std::string optimizer = optimizer_name(0, 1);
  manifest.files.push_back(entry_of(
      staged, optimizer, write_optimizer_shard(staged + "/" + optimizer, content.place(), content.slices)));
  write_text(staged, kManifestFile, to_text(manifest));
  sync_directory(staged);
}

/// Gives the staged directory its final name; what had that name before is gone only after it.
void publish(const std::string& staged, const std::string& target) {
  if (!std::filesystem::exists(std::filesystem::symlink_status(target))) {
    durable_rename(staged, target);
    return;
  }
  durable_exchange(staged, target);
  remove_tree(staged);
}

}  // namespace writer_detail

struct Writer::Impl {
  std::string directory;
  config::Checkpoint options;
  Retention retention;
  std::atomic<int64_t> newest{-1};

  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  std::optional<Snapshot> queued;  // set: waiting for, or being written by, the thread
  bool stop = false;
  std::exception_ptr failure;
  std::thread thread;  // started by the first asynchronous save

  Impl(std::string where, config::Checkpoint wanted)
      : directory(std::move(where)),
        options(wanted),
        retention(directory, wanted.keep_last, wanted.keep_every_steps) {}

  void write(const Snapshot& snapshot) {
    const std::string name = step_name(snapshot.step);
    const std::string staged = directory + "/" + temporary_name(snapshot.step);
    const writer_detail::Content content = writer_detail::to_content(snapshot);
    try {
      writer_detail::check_space(directory, content);
      writer_detail::stage(staged, content);
      writer_detail::publish(staged, directory + "/" + name);
    } catch (const std::exception& reason) {
      remove_tree(staged);
      throw EnvironmentError(
          "checkpoint of step {} was not written ({} bytes): {}; complete checkpoints are untouched",
          snapshot.step, writer_detail::needed_bytes(content), reason.what());
    }
    newest = snapshot.step;
    // From here on the checkpoint counts: what fails now is housekeeping, which the next save repeats.
    try {
      atomic_write(directory + "/" + kLatestFile, name + "\n");
      retention.apply(name);
    } catch (const std::exception& reason) {
      log::warning("checkpoint {} is complete, but: {}", name, reason.what());
    }
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return queued || stop; });
      if (!queued) return;
      lock.unlock();
      std::exception_ptr caught;
      try {
        write(*queued);
      } catch (...) {
        caught = std::current_exception();
      }
      lock.lock();
      queued.reset();
      if (caught) failure = caught;
      changed.notify_all();
    }
  }

  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !queued; });
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  }
};

Writer::Writer(std::string checkpoints_directory, config::Checkpoint options)
    : impl_(std::make_unique<Impl>(std::move(checkpoints_directory), options)) {}

Writer::~Writer() {
  try {
    wait();
  } catch (const std::exception& failure) {
    log::error("{}", failure.what());
  }
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->changed.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
}

void Writer::save(Snapshot snapshot) {
  wait();
  if (!std::filesystem::exists(impl_->directory)) {
    create_directories(impl_->directory);
    const std::string parent = std::filesystem::path(impl_->directory).parent_path().string();
    sync_directory(parent.empty() ? "." : parent);
  }
  writer_detail::check_space(impl_->directory, writer_detail::to_content(snapshot));
  if (!impl_->options.asynchronous) {
    impl_->write(snapshot);
    return;
  }
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->thread.joinable()) impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
  impl_->queued = std::move(snapshot);
  impl_->changed.notify_all();
}

void Writer::wait() { impl_->wait(); }

int64_t Writer::newest_step() const { return impl_->newest; }

uint64_t checkpoint_bytes(int64_t num_parameters) {
  return static_cast<uint64_t>(num_parameters) * 3 * sizeof(float) + (uint64_t{1} << 20);
}

}  // namespace osdn::checkpoint
