// What the launchers of two nodes say to each other through the store of node 0.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "dist/peers.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

namespace osdn::dist {
namespace store_peers_test {

using std::chrono::milliseconds;

constexpr milliseconds kLong{10000};
constexpr milliseconds kSoon{700};  // several rounds of the launchers' talk

/// What `look` finds, once it finds something; nothing after `longest`.
template <typename Look>
auto wait_for(const Look& look, milliseconds longest) -> decltype(look()) {
  for (const auto until = std::chrono::steady_clock::now() + longest;
       std::chrono::steady_clock::now() < until; std::this_thread::sleep_for(milliseconds(10)))
    if (auto found = look()) return found;
  return look();
}

Failure failure(const std::string& reason) { return {.reason = reason}; }

/// The launchers of two nodes, whose ranks run in attempt 0.
class TwoNodes {
 public:
  TwoNodes() {
    nodes_[0] = launcher(0);
    nodes_[1] = launcher(1);
    for (const auto& node : nodes_) node->join(0);
    for (int node = 0; node < 2; ++node) REQUIRE(attempt_of(node) == 0);
  }
  // The one that serves goes last.
  ~TwoNodes() { nodes_[1].reset(); }

  Peers& operator[](int node) { return *nodes_[node]; }
  /// Of the meeting that the node comes to, or -1.
  int attempt_of(int node, milliseconds longest = kLong) {
    const auto meeting = wait_for([&] { return nodes_[node]->meeting(); }, longest);
    return meeting ? meeting->attempt : -1;
  }
  std::string failure_of(int node, milliseconds longest = kLong) {
    const auto found = wait_for([&] { return nodes_[node]->failure(); }, longest);
    return found ? found->reason : "none";
  }
  void start_anew(int node) {
    nodes_[node].reset();
    nodes_[node] = launcher(node);
  }

 private:
  std::unique_ptr<Peers> launcher(int node) const {
    return make_peers(
        {.nodes = 2, .node_rank = node, .processes = 1, .master_addr = "127.0.0.1", .master_port = port_},
        60);
  }

  const int port_ = test::free_port();
  std::unique_ptr<Peers> nodes_[2];
};

}  // namespace store_peers_test

TEST_CASE("a node whose ranks still run learns why the attempt ended, and the next waits for it",
          "[store_peers][dist]") {
  namespace t = store_peers_test;
  t::TwoNodes nodes;
  nodes[0].report(t::failure("rank 0 timed out"));
  CHECK(nodes.failure_of(0) == "rank 0 timed out");
  nodes[0].join(1);
  CHECK(nodes.attempt_of(0, t::kSoon) == -1);
  CHECK(nodes.failure_of(1) == "rank 0 timed out");
  // Its rank ends a moment later, of the same event: that is no failure of the next attempt.
  nodes[1].report(t::failure("rank 1 timed out"));
  CHECK(nodes.failure_of(1) == "rank 0 timed out");
  CHECK(nodes.failure_of(0, t::kSoon) == "none");
  nodes[1].join(1);
  CHECK(nodes.attempt_of(0) == 1);
  CHECK(nodes.attempt_of(1) == 1);
  for (int node = 0; node < 2; ++node) CHECK(nodes.failure_of(node, t::kSoon) == "none");
}

TEST_CASE("a failure is told to the other nodes also when its own goes on before it could be",
          "[store_peers][dist]") {
  namespace t = store_peers_test;
  t::TwoNodes nodes;
  nodes[1].report(t::failure("rank 1 died"));
  nodes[1].join(1);
  CHECK(nodes.failure_of(0) == "rank 1 died");
  nodes[0].join(1);
  for (int node = 0; node < 2; ++node) {
    CHECK(nodes.attempt_of(node) == 1);
    CHECK(nodes.failure_of(node, t::kSoon) == "none");
  }
}

TEST_CASE("a launcher that is started anew joins the attempt that the job is at", "[store_peers][dist]") {
  namespace t = store_peers_test;
  t::TwoNodes nodes;
  nodes[0].report(t::failure("rank 1 is gone"));
  CHECK(nodes.failure_of(0) == "rank 1 is gone");
  nodes.start_anew(1);
  nodes[0].join(1);
  nodes[1].join(0);
  CHECK(nodes.attempt_of(0) == 1);
  // It may meet node 0 in the attempt that has failed first, and is then told so.
  if (nodes.attempt_of(1) == 0) {
    CHECK(nodes.failure_of(1) == "rank 1 is gone");
    nodes[1].join(1);
    CHECK(nodes.attempt_of(1) == 1);
  }
  CHECK(nodes.failure_of(1, t::kSoon) == "none");
}

}  // namespace osdn::dist
