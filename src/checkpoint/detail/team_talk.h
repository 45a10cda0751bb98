// What the ranks of a team tell each other while they write a checkpoint, over their board: where it is
// staged, and what each has put there.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/team.h"

namespace osdn::checkpoint::detail {

class TeamTalk {
 public:
  explicit TeamTalk(Team team) : team_(std::move(team)) {}

  bool leads() const { return team_.rank == 0; }

  // Rank 0.
  void announce(int64_t step, const std::string& staged);
  /// Entries of the other ranks' files, in the order of ranks. EnvironmentError when one failed or does not
  /// answer in time.
  std::vector<ManifestFile> collect(int64_t step);

  // The others.
  std::string await_place(int64_t step);
  void report(int64_t step, const std::vector<ManifestFile>& files);
  void report_failure(int64_t step, const std::string& reason) noexcept;

  /// Ends every wait with an error; from any thread.
  void give_up() { given_up_ = true; }

 private:
  std::string await(const std::string& key, const std::string& whom);

  Team team_;
  std::atomic<bool> given_up_{false};
};

}  // namespace osdn::checkpoint::detail
