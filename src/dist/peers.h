// What the launchers of a job's nodes tell each other: that a node is ready, that one of its ranks failed,
// that all of them are done. Calls return at once, so a launcher goes on watching its processes and its
// signals while another node is silent.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "dist/launch.h"

namespace osdn::dist {

/// Why an attempt ended, told by the launcher of the rank that failed first.
struct Failure {
  ExitCode code = ExitCode::kEnvironmentError;
  std::string reason;   // "rank 1 (process 4711) died of SIGKILL ..."
  bool curable = true;  // starting again may help
};

/// All nodes are there: the ranks may be started.
struct Meeting {
  int attempt = 0;  // 0, 1, ...: how often the job was started again
  int first_rank = 0;
  int world_size = 1;
  std::string master_addr;
  int master_port = 0;
};

class Peers {
 public:
  virtual ~Peers() = default;
  /// This node is ready for an attempt.
  virtual void join(int attempt) = 0;
  /// Once all nodes are. Throws UserError or EnvironmentError when they cannot come together.
  virtual std::optional<Meeting> meeting() = 0;
  /// The first report of all nodes counts.
  virtual void report(const Failure& failure) = 0;
  /// That report, once it is known here; or that the other nodes cannot be reached.
  virtual std::optional<Failure> failure() = 0;
  /// All ranks of this node have ended in order.
  virtual void report_done() = 0;
  virtual bool all_done() = 0;
};

/// Serves the meeting place of the job on node 0 (a c10d TCPStore; in a job of one node on a port that is
/// free) and connects the launchers of the others to it. Throws EnvironmentError when the port is taken.
/// Silence of `timeout_seconds` ends the wait for nodes; twice that, the contact. Starts threads: block
/// signals before.
std::unique_ptr<Peers> make_peers(const Node& node, double timeout_seconds);

}  // namespace osdn::dist
