#include "train/run_directory.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"
#include "config/yaml.h"

namespace osdn::train {
namespace {

FileLock lock_or_throw(const std::string& path) {
  create_directories(path);
  std::string holder;
  std::optional<FileLock> lock = FileLock::try_acquire(path + "/lock", &holder);
  if (!lock)
    throw UserError("{}: the run directory is in use by {}; wait for it, stop it, or choose another run.name",
                    path, holder.empty() ? "another process" : holder);
  return std::move(*lock);
}

bool starts_with(const std::string& text, const std::string& prefix) { return text.rfind(prefix, 0) == 0; }

/// Keys that may change between starts of one run.
bool may_differ(const std::string& difference) {
  constexpr const char* kFree[] = {"run.name",        "run.directory",    "run.resume",
                                   "run.init_from",   "run.device",       "train.steps",
                                   "train.recompute", "train.cuda_graph", "train.micro_batch_sequences",
                                   "checkpoint.",     "evaluation.",      "prepare.",
                                   "metrics.",        "distributed."};
  return std::any_of(std::begin(kFree), std::end(kFree),
                     [&](const char* key) { return starts_with(difference, key); });
}

std::string absolute(const std::string& path) {
  std::string full = std::filesystem::absolute(path).lexically_normal().string();
  if (first_invalid_utf8(full) != std::string::npos)
    throw UserError("{}: expected a path in UTF-8, as the run's config.yaml is (rename the folder)", full);
  return full;
}

}  // namespace

RunDirectory::RunDirectory(const config::Run& run, Role role)
    : path_(absolute(run.directory + "/" + run.name)) {
  if (role == Role::kGuest) return;
  lock_ = lock_or_throw(path_);
  // What a kill left of the files that are replaced whole; the lock says that nobody is writing them.
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    if (!starts_with(name, "config.yaml.tmp-") && !starts_with(name, "environment.json.tmp-")) continue;
    std::error_code failure;
    std::filesystem::remove(entry.path(), failure);
    if (failure) log::warning("{}: cannot remove: {}", entry.path().string(), failure.message());
  }
}

void RunDirectory::write_config(const config::Config& config) const {
  atomic_write(path_ + "/config.yaml", config::dump(config));
}

config::Config reconcile(const config::Config& stored, config::Config config) {
  if (!config.model.vocab_size) config.model.vocab_size = stored.model.vocab_size;
  if (!config.train.micro_batch_sequences)
    config.train.micro_batch_sequences = stored.train.micro_batch_sequences;
  if (config.train.precision == config::Precision::kAuto) config.train.precision = stored.train.precision;
  if (config.run.device == config::Device::kAuto) config.run.device = stored.run.device;
  // Where the data lies is no part of the run, what it is is: digests of shards and tokenizer are compared
  // when they are opened. So a run may move to another folder or machine.
  config::Config known = stored;
  // null and the value that it stands for are one setting: runs from before the key had a null hold its
  // value.
  if (config::output_gate(stored.model) == config::output_gate(config.model))
    known.model.use_gate = config.model.use_gate;
  known.data.tokenizer = config.data.tokenizer;
  known.data.validation = config.data.validation;
  if (known.data.train.size() == config.data.train.size())
    for (size_t i = 0; i < known.data.train.size(); ++i) known.data.train[i].path = config.data.train[i].path;
  std::string refused;
  for (const std::string& difference : config::differences(known, config))
    if (!may_differ(difference)) refused += "\n  " + difference;
  if (!refused.empty())
    throw UserError(
        "{}/{}: holds a run with another configuration:{}\nchoose another run.name to start a new run, or "
        "restore these values",
        config.run.directory, config.run.name, refused);
  return config;
}

config::Config with_absolute_paths(config::Config config) {
  config.run.directory = absolute(config.run.directory);
  if (config.run.init_from) config.run.init_from = absolute(*config.run.init_from);
  for (config::WeightedSource& source : config.data.train) source.path = absolute(source.path);
  for (std::string& path : config.data.validation) path = absolute(path);
  if (config.data.tokenizer) config.data.tokenizer = absolute(*config.data.tokenizer);
  for (std::string& path : config.prepare.input) path = absolute(path);
  config.prepare.output = absolute(config.prepare.output);
  if (config.prepare.tokenizer_model)
    config.prepare.tokenizer_model = absolute(*config.prepare.tokenizer_model);
  return config;
}

}  // namespace osdn::train
