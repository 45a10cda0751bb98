#include "dist/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/log.h"
#include "dist/worker_process.h"

namespace osdn::dist {
namespace supervisor_detail {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::array kStopSignals = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};
// Two processes may die of the same event: that long the causes are gathered before one is named.
constexpr milliseconds kGather{250};
constexpr milliseconds kTick{100};  // how often other nodes are looked at

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kStopSignals) sigaddset(&set, number);
  // Under nohup the end of the terminal's session is to be ignored.
  struct sigaction hangup {};
  if (::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN) sigdelset(&set, SIGHUP);
  sigaddset(&set, SIGCHLD);
  return set;
}

/// What was asked of this launcher by signals.
struct StopRequest {
  int signal = 0;  // the first one
  int count = 0;
  ExitCode code() const { return signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated; }
};

/// How much a failure tells: a rank whose peer is gone ends with an environment error of its own, just after.
int weight(int wait_status) {
  if (WIFSIGNALED(wait_status)) return 2;
  return WEXITSTATUS(wait_status) == static_cast<int>(ExitCode::kEnvironmentError) ? 0 : 1;
}

class Supervisor {
 public:
  Supervisor(Peers& peers, const BlockedSignals& signals, const SupervisorOptions& options,
             const MakeWorkers& make_workers)
      : peers_(peers), signals_(signals), options_(options), make_workers_(make_workers) {}

  ExitCode run() {
    for (int attempt = 0;; ++attempt) {
      peers_.join(attempt);
      std::optional<Meeting> meeting;
      while (!(meeting = peers_.meeting())) {
        wait(kTick);
        if (stop_.count > 0) return stop_.code();
      }
      attempt = meeting->attempt;
      const std::optional<Failure> failure = run_attempt(*meeting);
      if (!failure) return code_;
      say_failure(*failure, attempt);
      if (stop_.count > 0 || !failure->curable || attempt >= options_.max_restarts) return failure->code;
    }
  }

 private:
  void say_failure(const Failure& failure, int attempt) {
    if (failure.code != ExitCode::kUserError && !options_.log_file.empty() && !std::exchange(logs_, true) &&
        std::filesystem::exists(std::filesystem::path(options_.log_file).parent_path()))
      log::add_file(options_.log_file);
    log::error("{}", failure.reason);
    if (stop_.count > 0)
      log::error("the job was asked to stop and is not started again");
    else if (!failure.curable)
      log::error("starting again would not help: correct that first");
    else if (attempt >= options_.max_restarts)
      log::error("no restart is left (distributed.max_restarts: {})", options_.max_restarts);
    else
      log::warning("starting all processes again from the newest checkpoint (restart {} of {})", attempt + 1,
                   options_.max_restarts);
  }

  /// Until a signal comes or the time is over.
  void wait(milliseconds longest) {
    pollfd poll_for = {.fd = signals_.descriptor(), .events = POLLIN, .revents = 0};
    ::poll(&poll_for, 1, static_cast<int>(std::max<int64_t>(0, longest.count())));
    signalfd_siginfo info{};
    while (::read(signals_.descriptor(), &info, sizeof(info)) == sizeof(info)) {
      const int number = static_cast<int>(info.ssi_signo);
      if (number == SIGCHLD) continue;
      if (stop_.count++ == 0) stop_.signal = number;
      for (const WorkerProcess& worker : workers_) worker.signal(number, stop_.count);
      if (stop_.count == 1)
        log::info("SIG{}: every rank finishes its step, then a checkpoint is written",
                  ::sigabbrev_np(number));
      else if (!kill_at_)
        kill_at_ = Clock::now() + options_.grace;
    }
  }

  std::optional<Failure> run_attempt(const Meeting& meeting) {
    workers_.clear();
    failure_.reset();
    failed_.clear();
    decide_at_ = follow_until_ = kill_at_ = std::nullopt;
    code_ = ExitCode::kDone;
    torn_ = false;
    for (const Worker& worker : make_workers_(meeting)) workers_.emplace_back(worker);
    if (stop_.count > 0) end_all();
    while (num_running() > 0) {
      wait(kTick);
      reap();
      if (!ending()) decide();
      if (kill_at_ && Clock::now() >= *kill_at_)
        for (const WorkerProcess& worker : workers_) worker.kill();
    }
    if (!failure_) settle_with_peers();
    return failure_;
  }

  bool ending() const { return failure_.has_value(); }

  int64_t num_running() const {
    return std::count_if(workers_.begin(), workers_.end(),
                         [](const auto& worker) { return worker.running(); });
  }

  void end_all() {
    for (const WorkerProcess& worker : workers_) {
      if (worker.stopped()) worker.kill();  // it would not act on anything else
      worker.signal(SIGTERM, std::max(1, stop_.count));
    }
    kill_at_ = Clock::now() + options_.grace;
  }

  void reap() {
    for (WorkerProcess& worker : workers_) {
      const std::optional<int> status = worker.poll();
      if (!status || ending()) continue;
      const std::optional<ExitCode> stopped = stop_code(*status);
      if (stopped || (WIFEXITED(*status) && WEXITSTATUS(*status) == 0)) {
        if (stopped) code_ = *stopped;
        if (!follow_until_) follow_until_ = Clock::now() + options_.follow;
        // It could not tell the others: they are asked too, and what its end does to them is no failure.
        if (stopped && WIFSIGNALED(*status)) {
          torn_ = true;
          for (const WorkerProcess& other : workers_) other.signal(SIGTERM, std::max(1, stop_.count));
        }
        continue;
      }
      if (torn_ && weight(*status) == 0) continue;
      failed_.push_back({&worker, *status});
      if (!decide_at_) decide_at_ = Clock::now() + kGather;
    }
  }

  void decide() {
    const auto now = Clock::now();
    if (!failed_.empty() && (now >= *decide_at_ || num_running() == 0)) {
      const auto first = std::max_element(failed_.begin(), failed_.end(), [](const auto& a, const auto& b) {
        return weight(a.status) < weight(b.status);
      });
      Failure found =
          describe_failure(first->status, first->worker->name(options_.where), first->worker->last_line());
      for (const WorkerProcess& worker : workers_)
        if (worker.stopped())
          found.reason += "; " + worker.name(options_.where) + " is stopped (SIGSTOP, a debugger)";
      fail(found);
    } else if (const std::optional<Failure> elsewhere = peers_.failure()) {
      failure_ = elsewhere;
      end_all();
    } else if (follow_until_ && now >= *follow_until_) {
      const auto left =
          std::find_if(workers_.begin(), workers_.end(), [](const auto& w) { return w.running(); });
      if (left == workers_.end()) return;
      fail({.code = ExitCode::kEnvironmentError,
            .reason =
                fmt::format("{} still runs {} s after the others have ended{}", left->name(options_.where),
                            std::chrono::duration<double>(options_.follow).count(),
                            left->stopped() ? "; it is stopped (SIGSTOP, a debugger)" : ""),
            .curable = true});
    }
  }

  /// A failure of this node: told to the others, whose first word counts.
  void fail(const Failure& found) {
    failure_ = found;
    end_all();
    peers_.report(found);
    for (const auto until = Clock::now() + milliseconds(2000); Clock::now() < until; wait(kTick)) {
      reap();
      if (const std::optional<Failure> agreed = peers_.failure()) {
        failure_ = agreed;
        return;
      }
    }
  }

  /// The ranks of this node have ended in order; those of other nodes may still fail.
  void settle_with_peers() {
    peers_.report_done();
    const auto until = Clock::now() + options_.follow;
    while (!peers_.all_done()) {
      if ((failure_ = peers_.failure())) return;
      if (Clock::now() >= until || stop_.count > 1) return;
      wait(kTick);
    }
  }

  struct Failed {
    WorkerProcess* worker;
    int status;
  };

  Peers& peers_;
  const BlockedSignals& signals_;
  const SupervisorOptions& options_;
  const MakeWorkers& make_workers_;
  std::vector<WorkerProcess> workers_;
  std::vector<Failed> failed_;      // in the order they were seen
  std::optional<Failure> failure_;  // why all are being ended
  std::optional<Clock::time_point> decide_at_, follow_until_, kill_at_;
  ExitCode code_ = ExitCode::kDone;
  bool torn_ = false;  // a rank died of a signal that asks to stop, at once
  StopRequest stop_;
  bool logs_ = false;
};

}  // namespace supervisor_detail

BlockedSignals::BlockedSignals() {
  const sigset_t set = supervisor_detail::handled_signals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  // A reader of the log that goes away must not end the job.
  ::signal(SIGPIPE, SIG_IGN);
  descriptor_ = ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (descriptor_ < 0) throw EnvironmentError("cannot watch for signals: {}", std::strerror(errno));
}

BlockedSignals::~BlockedSignals() {
  ::close(descriptor_);
  const sigset_t set = supervisor_detail::handled_signals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

ExitCode supervise(Peers& peers, const BlockedSignals& signals, const SupervisorOptions& options,
                   const MakeWorkers& make_workers) {
  return supervisor_detail::Supervisor(peers, signals, options, make_workers).run();
}

}  // namespace osdn::dist
