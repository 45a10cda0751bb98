// Faults in the system's file calls, for tests: counts the calls that change files below a folder, and
// disturbs one of them. Linked into a test it acts in the processes that the test forks; preloaded into the
// program it takes its plan from the environment (OSDN_FAULT_UNDER, _MATCH, _AT, _ACTION, _RECORD).
#pragma once

#include <cstdint>
#include <string>

namespace osdn::faults {

enum class Action {
  kNone,
  kFail,       // the call fails, once
  kFailOn,     // it fails, and so does every later call that needs space: a full or write-protected medium
  kShort,      // a write takes half of what it was given and says so
  kTorn,       // a write takes half, then the process is killed
  kKillAfter,  // the process is killed when the call has been done
};

struct Plan {
  std::string under;  // calls on paths below this absolute folder count
  std::string match;  // and only those whose line (see `record`) contains this; empty: all
  int64_t at = 0;     // which of them is disturbed, from 1; 0: none
  Action action = Action::kNone;
  int error = 0;       // errno of a call that fails
  std::string record;  // file that receives a line a call, "KIND PATH" or "rename FROM -> TO"; empty: none
};

/// From now on in this process. Kinds: create write truncate sync rename mkdir remove lock.
void arm(const Plan& plan);

}  // namespace osdn::faults
