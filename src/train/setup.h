// What must be settled before the first step: device, precision, micro-batch, vocabulary, loader options;
// each with its message when it can't be had.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "dist/launch_environment.h"
#include "optim/parameter_arena.h"
#include "tensor/fwd.h"

namespace osdn::train {

/// The device of this process, made the current one: of several processes on a node the GPU of its local
/// rank, or the only one it may see. Throws EnvironmentError when CUDA is asked for and there is no GPU, with
/// the reason, and when there are fewer than processes.
at::Device choose_device(config::Device wanted, const dist::LaunchEnvironment& launched = {});

/// On a CPU: the threads of this process, so that the processes of a node do not ask for more than its cores.
/// OMP_NUM_THREADS overrides it.
void share_cores(int64_t processes_on_node);

/// Fills every automatic value that the run freezes: device, precision, micro-batch, vocabulary (from the
/// tokenizer). Throws UserError for combinations that do not divide.
void freeze_automatic_values(config::Config& config, at::Device device, int64_t world_size,
                             const std::optional<data::Tokenizer>& tokenizer);

/// Throws EnvironmentError when the disk of `checkpoints_directory` lacks the space for the checkpoints that
/// a run keeps.
void check_space(const std::string& checkpoints_directory, const config::Checkpoint& options,
                 int64_t num_parameters);

/// What a run may do but hardly anybody wants, a line each: a warm-up that the run ends in, validation on
/// shards that are trained on.
std::vector<std::string> doubtful_settings(const config::Config& config);

/// Throws EnvironmentError when this machine's memory cannot even hold what a rank on a CPU keeps of its
/// parameters in such an arena.
void check_host_memory(const optim::ParameterArena::Options& arena, int64_t num_parameters);

/// The tokenizer that the configuration names, if it names one.
std::optional<data::Tokenizer> open_tokenizer(const config::Data& data);

/// A micro-batch that was chosen for another number of ranks, for this one: the same if it divides each
/// rank's share of the global batch, else the largest that divides both.
int64_t fit_micro_batch(const config::Config& config, int64_t micro_batch, int64_t world_size);

/// Loader options of a frozen configuration.
data::LoaderOptions loader_options(const config::Config& config, int64_t rank, int64_t world_size,
                                   int64_t samples_consumed);

/// Throws UserError when the shards were made with another tokenizer than data.tokenizer.
void check_tokenizer(const data::Loader& loader, const data::Tokenizer& tokenizer, const std::string& path);

at::ScalarType compute_dtype(config::Precision precision);

}  // namespace osdn::train
