// Names inside a run's checkpoints directory: which entries are checkpoints, which are leftovers of a killed
// writer, and which are somebody else's and stay untouched.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace osdn::checkpoint {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kLatestFile = "latest";

/// step_00000512
std::string step_name(int64_t step);

/// The step of `step_` followed by 1 to 18 digits and nothing else.
std::optional<int64_t> parse_step_name(std::string_view name);

/// optimizer-0-of-1.safetensors
std::string optimizer_name(int64_t rank, int64_t world_size);
bool is_optimizer_name(std::string_view name);

/// .tmp-step_00000512-PID of this process: where a checkpoint is staged and where one that goes is moved
/// first.
std::string temporary_name(int64_t step);

/// `.tmp-step_DIGITS-PID` or `latest.tmp-PID`: a name that only an unfinished write has.
bool is_leftover(std::string_view name);

struct StepEntry {
  int64_t step = 0;
  std::string name;
};

/// Sub-directories with a step's name, ascending. Empty when `directory` does not exist. `strangers`, when
/// given, receives what begins with `step_` and is no checkpoint directory, with the reason.
std::vector<StepEntry> list_steps(const std::string& directory,
                                  std::vector<std::string>* strangers = nullptr);

/// Names of all entries, sorted; empty when the directory does not exist, EnvironmentError when it can't be
/// listed.
std::vector<std::string> list_names(const std::string& directory);

/// Removes and reports what killed writers left. For the holder of the run's lock alone: the process ids in
/// the names say nothing about who is alive (containers use the same ones again), the lock does.
void remove_leftovers(const std::string& directory);

/// Last component of a path, with or without a slash at its end.
std::string base_name(const std::string& path);

/// Removes a directory tree; a failure is logged, not thrown.
void remove_tree(const std::string& path);

}  // namespace osdn::checkpoint
