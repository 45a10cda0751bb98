// Short messages between the ranks of a job beside its collectives: for threads that work in the background
// and so have no place in the order of collectives. One board a thread.
#pragma once

#include <optional>
#include <string>

namespace osdn::dist {

class Board {
 public:
  Board() = default;
  virtual ~Board() = default;
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Both throw EnvironmentError when the job's meeting place is gone.
  virtual void post(const std::string& key, const std::string& value) = 0;
  /// What was posted under the key, or nothing yet. Never waits for it.
  virtual std::optional<std::string> read(const std::string& key) = 0;
};

}  // namespace osdn::dist
