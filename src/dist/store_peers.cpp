#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "dist/peers.h"
#include "tensor/torch.h"

namespace osdn::dist {
namespace store_peers_detail {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Store = c10::intrusive_ptr<c10d::TCPStore>;

constexpr milliseconds kRound{150};            // between two looks at the store
constexpr milliseconds kConnectAttempt{5000};  // of one try to reach node 0
constexpr milliseconds kFarewell{3000};        // for the others to read the last word before the store goes

std::string reason_of(const std::exception& failure) {
  const std::string text = failure.what();
  return text.substr(0, text.find('\n'));
}

std::string list_of(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

/// Port 0: any that is free.
Store serve(const std::string& address, int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  try {
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  } catch (const std::exception& failure) {
    const std::string reason = reason_of(failure);
    if (reason.find("EADDRINUSE") != std::string::npos || reason.find("already in use") != std::string::npos)
      throw EnvironmentError(
          "{}:{}: the port is in use on this host, where node 0 is to listen; another job? Name another port "
          "(--master HOST:PORT, MASTER_PORT)",
          address, port);
    throw EnvironmentError("{}:{}: cannot listen there: {}", address, port, reason);
  }
}

/// A job of one node: no other launcher to talk to.
class Alone : public Peers {
 public:
  explicit Alone(const Node& node) : node_(node), store_(serve("127.0.0.1", 0)) {}

  void join(int attempt) override {
    attempt_ = attempt;
    failure_.reset();
  }
  std::optional<Meeting> meeting() override {
    return Meeting{.attempt = attempt_,
                   .first_rank = 0,
                   .world_size = node_.processes,
                   .master_addr = "127.0.0.1",
                   .master_port = store_->getPort()};
  }
  void report(const Failure& failure) override { failure_ = failure; }
  std::optional<Failure> failure() override { return failure_; }
  void report_done() override {}
  bool all_done() override { return true; }

 private:
  Node node_;
  Store store_;
  int attempt_ = 0;
  std::optional<Failure> failure_;
};

struct Report {
  int attempt = 0;  // that failed
  Failure failure;
};

struct Wanted {
  int attempt = 0;
  bool joined = false;
  bool met = false;  // its ranks run: the node stays in this attempt until it knows why that has ended
  std::optional<Report> report;  // until it is delivered, which may be after the node has gone on
  bool done = false;
  bool leaving = false;
};

struct Seen {
  int attempt = -1;  // what follows is of this one
  std::optional<Meeting> meeting;
  std::vector<int> missing;  // nodes that have not joined
  std::string refused;       // why this node cannot take part
  std::optional<Failure> failure;
  bool all_done = false;
};

/// Between the launcher and its agent, a thread that may be stuck in a dead connection.
struct Desk {
  std::mutex mutex;
  std::condition_variable changed;
  Wanted wanted;
  Seen seen;
  bool connected = false;  // ever
  std::string trouble;     // the last exception's words
  Clock::time_point last_contact = Clock::now();
  bool finished = false;
};

std::string to_text(const Failure& failure) {
  return json_text(
      {{"code", static_cast<int>(failure.code)}, {"reason", failure.reason}, {"curable", failure.curable}});
}

Failure from_text(const std::string& text) {
  const Json json = Json::parse(text);
  return {.code = static_cast<ExitCode>(json.at("code").get<int>()),
          .reason = json.at("reason").get<std::string>(),
          .curable = json.at("curable").get<bool>()};
}

/// Talks with the store, in a thread of its own. Every round may be repeated: what is written is the same
/// again.
class Agent {
 public:
  Agent(std::shared_ptr<Desk> desk, const Node& node, Store store)
      : desk_(std::move(desk)), node_(node), store_(std::move(store)) {
    char host[256] = {};
    ::gethostname(host, sizeof(host) - 1);
    identity_ = fmt::format("{}/{}", host, ::getpid());
  }

  void run() {
    for (bool leaving = false; !leaving;) {
      Wanted wanted;
      {
        std::unique_lock lock(desk_->mutex);
        desk_->changed.wait_for(lock, kRound);
        wanted = desk_->wanted;
      }
      leaving = wanted.leaving;
      try {
        if (!store_) connect();
        const Seen seen = wanted.joined ? round(wanted) : Seen{};
        const std::lock_guard lock(desk_->mutex);
        desk_->connected = true;
        desk_->last_contact = Clock::now();
        Wanted& now = desk_->wanted;
        if (wanted.report && now.report && now.report->attempt == wanted.report->attempt) now.report.reset();
        if (now.met ? seen.attempt == now.attempt : seen.attempt >= now.attempt) desk_->seen = seen;
      } catch (const std::exception& failure) {
        const std::lock_guard lock(desk_->mutex);
        desk_->trouble = reason_of(failure);
        if (node_.node_rank != 0) store_.reset();  // a broken connection stays broken
      }
    }
    const std::lock_guard lock(desk_->mutex);
    desk_->finished = true;
    desk_->changed.notify_all();
  }

 private:
  std::string get(const std::string& key) {
    const std::vector<uint8_t> value = store_->get(key);
    return {value.begin(), value.end()};
  }
  void set(const std::string& key, const std::string& value) {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }
  /// The value that the key has afterwards: the first one that anybody gave it.
  std::string set_first(const std::string& key, const std::string& value) {
    const std::vector<uint8_t> now =
        store_->compareSet(key, {}, std::vector<uint8_t>(value.begin(), value.end()));
    return {now.begin(), now.end()};
  }

  void connect() {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(node_.master_port);
    options.waitWorkers = false;
    options.timeout = kConnectAttempt;
    store_ = c10::make_intrusive<c10d::TCPStore>(node_.master_addr, options);
  }

  Seen round(const Wanted& wanted) {
    Seen seen;
    // Before the next attempt is announced: whoever sees that one finds why this one ended.
    if (wanted.report)
      set_first(prefix_of(wanted.report->attempt) + "failure", to_text(wanted.report->failure));
    // A launcher that was started anew joins the attempt that node 0 is at. One whose ranks run does not: it
    // ends them first, and what it says until then is of its own attempt.
    seen.attempt = wanted.attempt;
    if (node_.node_rank == 0)
      set("launch/attempt", std::to_string(wanted.attempt));
    else if (!wanted.met && store_->check({"launch/attempt"}))
      seen.attempt = std::max(wanted.attempt, std::stoi(get("launch/attempt")));
    prefix_ = prefix_of(seen.attempt);

    if (!fits_node_0(seen)) return seen;
    const std::string own = fmt::format("{} {} {}", node_.nodes, node_.processes, identity_);
    const std::string taken = set_first(node_key("node", node_.node_rank), own);
    if (taken != own) {
      seen.refused = fmt::format(
          "--node-rank {}: another launcher ({}) is node {} of the job at {}:{}; give every node a rank of "
          "its "
          "own, or wait until that one has ended",
          node_.node_rank, taken.substr(taken.rfind(' ') + 1), node_.node_rank, node_.master_addr,
          node_.master_port);
      return seen;
    }
    gather(seen);
    if (store_->check({prefix_ + "failure"})) seen.failure = from_text(get(prefix_ + "failure"));
    if (wanted.done) set(node_key("done", node_.node_rank), "1");
    seen.all_done = store_->check(keys_of_all("done"));
    if (wanted.leaving) leave();
    return seen;
  }

  static std::string prefix_of(int attempt) { return fmt::format("launch/{}/", attempt); }

  std::string node_key(const std::string& what, int node) const {
    return fmt::format("{}{}_{}", prefix_, what, node);
  }

  std::vector<std::string> keys_of_all(const std::string& what) const {
    std::vector<std::string> keys;
    for (int node = 0; node < node_.nodes; ++node) keys.push_back(node_key(what, node));
    return keys;
  }

  /// Node 0 comes first, and what it says of the job holds for all. False while it is not there, too.
  bool fits_node_0(Seen& seen) {
    if (node_.node_rank == 0) return true;
    if (!store_->check({node_key("node", 0)})) return false;
    const int nodes = std::stoi(get(node_key("node", 0)));
    if (nodes != node_.nodes)
      seen.refused = fmt::format(
          "--nodes {}: node 0 of the job at {}:{} was started with --nodes {}; start all nodes with the same "
          "number",
          node_.nodes, node_.master_addr, node_.master_port, nodes);
    return nodes == node_.nodes;
  }

  /// Who has joined; the meeting, when all have.
  void gather(Seen& seen) {
    Meeting meeting = {.attempt = seen.attempt,
                       .first_rank = 0,
                       .world_size = 0,
                       .master_addr = node_.master_addr,
                       .master_port = node_.master_port};
    others_.clear();
    for (int node = 0; node < node_.nodes; ++node) {
      if (!store_->check({node_key("node", node)})) {
        seen.missing.push_back(node);
        continue;
      }
      others_.push_back(node);
      std::istringstream words(get(node_key("node", node)));
      int nodes = 0;
      int processes = 0;
      words >> nodes >> processes;
      if (node < node_.node_rank) meeting.first_rank += processes;
      meeting.world_size += processes;
    }
    if (seen.missing.empty()) seen.meeting = meeting;
  }

  void leave() {
    set(node_key("left", node_.node_rank), "1");
    if (node_.node_rank != 0) return;
    std::vector<std::string> all;
    for (const int node : others_) all.push_back(node_key("left", node));
    for (const auto until = Clock::now() + kFarewell; Clock::now() < until && !store_->check(all);)
      std::this_thread::sleep_for(kRound);
  }

  std::shared_ptr<Desk> desk_;
  Node node_;
  Store store_;
  std::string identity_;
  std::string prefix_;
  std::vector<int> others_;  // nodes that have joined, this one included
};

class StorePeers : public Peers {
 public:
  StorePeers(const Node& node, double timeout_seconds)
      : node_(node), timeout_(timeout_seconds), desk_(std::make_shared<Desk>()) {
    Store store = node.node_rank == 0 ? serve(node.master_addr, node.master_port) : Store();
    log::info("node {} of {}: {} {}:{}", node.node_rank, node.nodes,
              node.node_rank == 0 ? "waiting for the others at" : "going to the launcher of node 0 at",
              node.master_addr, node.master_port);
    // It owns all it touches, so that one stuck in a dead connection can be left behind.
    std::thread([desk = desk_, node, store = std::move(store)]() mutable {
      Agent(desk, node, std::move(store)).run();
    }).detach();
  }

  ~StorePeers() override {
    std::unique_lock lock(desk_->mutex);
    desk_->wanted.leaving = true;
    desk_->changed.notify_all();
    // Nobody to take leave of.
    if (!desk_->connected || Clock::now() - desk_->last_contact > kFarewell) return;
    desk_->changed.wait_for(lock, kFarewell + kRound, [&] { return desk_->finished; });
  }

  void join(int attempt) override {
    const std::lock_guard lock(desk_->mutex);
    desk_->wanted = {.attempt = attempt, .joined = true, .report = std::move(desk_->wanted.report)};
    desk_->seen = {};
    joined_at_ = Clock::now();
    desk_->changed.notify_all();
  }

  std::optional<Meeting> meeting() override {
    const std::lock_guard lock(desk_->mutex);
    const Seen& seen = desk_->seen;
    if (!seen.refused.empty()) throw UserError("{}", seen.refused);
    if (seen.meeting) {
      desk_->wanted.attempt = seen.attempt;
      desk_->wanted.met = true;
      return seen.meeting;
    }
    if (Clock::now() - joined_at_ < timeout_) return std::nullopt;
    if (!desk_->connected || Clock::now() - desk_->last_contact >= timeout_)
      throw EnvironmentError(
          "node {}: cannot reach the launcher of node 0 at {}:{} within {} s ({}); is it running there, and "
          "is the "
          "port open between the hosts? (--master, MASTER_ADDR, MASTER_PORT, distributed.timeout_seconds)",
          node_.node_rank, node_.master_addr, node_.master_port, timeout_.count(),
          desk_->trouble.empty() ? "no answer" : desk_->trouble);
    throw EnvironmentError(
        "node {}: only {} of {} nodes have come to {}:{} within {} s, missing: node {}; is a launcher "
        "started on "
        "each, and with this address? (distributed.timeout_seconds)",
        node_.node_rank, node_.nodes - static_cast<int>(seen.missing.size()), node_.nodes, node_.master_addr,
        node_.master_port, timeout_.count(), list_of(seen.missing));
  }

  void report(const Failure& failure) override {
    const std::lock_guard lock(desk_->mutex);
    desk_->wanted.report = {.attempt = desk_->wanted.attempt, .failure = failure};
    desk_->changed.notify_all();
  }

  std::optional<Failure> failure() override {
    const std::lock_guard lock(desk_->mutex);
    if (desk_->seen.failure) return desk_->seen.failure;
    // Once the time-out of a collective, so that it is told first, and once to come back.
    const std::chrono::duration<double> silence = Clock::now() - desk_->last_contact;
    if (silence < 2 * timeout_) return std::nullopt;
    return Failure{
        .code = ExitCode::kEnvironmentError,
        .reason = fmt::format("node {}: no contact with the launcher of node 0 at {}:{} for {:.0f} s ({})",
                              node_.node_rank, node_.master_addr, node_.master_port, silence.count(),
                              desk_->trouble.empty() ? "no answer" : desk_->trouble),
        .curable = false};
  }

  void report_done() override {
    const std::lock_guard lock(desk_->mutex);
    desk_->wanted.done = true;
    desk_->changed.notify_all();
  }

  bool all_done() override {
    const std::lock_guard lock(desk_->mutex);
    return desk_->seen.all_done;
  }

 private:
  Node node_;
  std::chrono::duration<double> timeout_;
  std::shared_ptr<Desk> desk_;
  Clock::time_point joined_at_ = Clock::now();
};

}  // namespace store_peers_detail

std::unique_ptr<Peers> make_peers(const Node& node, double timeout_seconds) {
  if (node.nodes == 1) return std::make_unique<store_peers_detail::Alone>(node);
  return std::make_unique<store_peers_detail::StorePeers>(node, timeout_seconds);
}

}  // namespace osdn::dist
