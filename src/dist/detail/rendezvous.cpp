#include "dist/detail/rendezvous.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "tensor/torch.h"

namespace osdn::dist::detail {
namespace rendezvous_detail {

using Clock = std::chrono::steady_clock;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string who(const LaunchEnvironment& launched) {
  return fmt::format("rank {} of {}", launched.rank, launched.world_size);
}

double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

/// 0, or the error number of a connection that does not come about before the deadline: the system's own
/// patience with an address that answers nothing is two minutes.
int try_to_connect(const addrinfo& entry, Clock::time_point deadline) {
  const int socket =
      ::socket(entry.ai_family, entry.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, entry.ai_protocol);
  if (socket < 0) return errno;
  int error = ::connect(socket, entry.ai_addr, entry.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd writable = {.fd = socket, .events = POLLOUT, .revents = 0};
    socklen_t size = sizeof(error);
    if (::poll(&writable, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 100, 5000))) != 1)
      error = ETIMEDOUT;
    else if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
      error = errno;
  }
  ::close(socket);
  return error;
}

/// Waits until something listens at the address; empty when it does, else why not. c10d's own attempts lie
/// further and further apart.
std::string wait_for_listener(const std::string& host, int port, Clock::time_point deadline) {
  constexpr auto kPause = std::chrono::milliseconds(50);
  std::string reason;
  do {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int looked_up = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (looked_up != 0) reason = std::string("the name does not resolve: ") + ::gai_strerror(looked_up);
    for (const addrinfo* entry = found; looked_up == 0 && entry; entry = entry->ai_next) {
      const int socket = ::socket(entry->ai_family, entry->ai_socktype, entry->ai_protocol);
      if (socket < 0) continue;
      // A host that answers nothing at all would hold connect() for two minutes.
      const timeval longest{.tv_sec = 1, .tv_usec = 0};
      ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof(longest));
      const bool connected = ::connect(socket, entry->ai_addr, entry->ai_addrlen) == 0;
      reason = connected ? "" : errno == EINPROGRESS ? "no answer" : std::strerror(errno);
      ::close(socket);
      if (connected) break;
    }
    if (looked_up == 0) ::freeaddrinfo(found);
    if (reason.empty()) return {};
    std::this_thread::sleep_for(kPause);
  } while (Clock::now() < deadline);
  return reason;
}

/// c10d waits for ever for whoever accepts its connection and says nothing; so it tries in a thread of its
/// own, which is left behind when it does not come back.
c10::intrusive_ptr<c10d::Store> open_store(const std::string& host, const c10d::TCPStoreOptions& options) {
  struct Attempt {
    std::promise<c10::intrusive_ptr<c10d::Store>> store;
  };
  const auto attempt = std::make_shared<Attempt>();
  std::future<c10::intrusive_ptr<c10d::Store>> result = attempt->store.get_future();
  std::thread([attempt, host, options] {
    try {
      attempt->store.set_value(c10::make_intrusive<c10d::TCPStore>(host, options));
    } catch (...) {
      attempt->store.set_exception(std::current_exception());
    }
  }).detach();
  // Its own time-out comes first where it has one.
  if (result.wait_for(options.timeout + std::chrono::milliseconds(500)) != std::future_status::ready)
    C10_THROW_ERROR(DistNetworkError, "what listens there accepts connections and does not answer");
  return result.get();
}

c10::intrusive_ptr<c10d::Store> connect(const LaunchEnvironment& launched,
                                        std::chrono::milliseconds timeout) {
  if (launched.master_addr.empty() || launched.master_port < 1 || launched.master_port > 65535)
    throw UserError(
        "{}: expected an address and a port at which the ranks meet (MASTER_ADDR, MASTER_PORT), got \"{}\" "
        "and {}",
        who(launched), launched.master_addr, launched.master_port);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launched.master_port);
  options.isServer = launched.rank == 0 && !launched.launcher_serves;
  options.waitWorkers = false;
  const auto deadline = Clock::now() + timeout;
  const auto unreachable = [&](const std::string& reason) {
    return EnvironmentError(
        "{}: cannot reach the job's meeting place {}:{} within {} s: {}; is rank 0 running there, and is the "
        "port open between the hosts? (MASTER_ADDR, MASTER_PORT, distributed.timeout_seconds)",
        who(launched), launched.master_addr, launched.master_port, seconds(timeout), reason);
  };
  if (!options.isServer) {
    const std::string reason = wait_for_listener(launched.master_addr, launched.master_port, deadline);
    if (!reason.empty()) throw unreachable(reason);
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  options.timeout = std::max(left, std::chrono::milliseconds(100));
  try {
    return open_store(launched.master_addr, options);
  } catch (const c10::Error& failure) {
    const std::string reason = first_line(failure.what_without_backtrace());
    if (!options.isServer) throw unreachable(reason);
    throw EnvironmentError(
        "{}: cannot listen on {}:{}: {}; is another job using the port? Choose another (MASTER_PORT)",
        who(launched), launched.master_addr, launched.master_port, reason);
  }
}

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

/// Every rank once, all of one mind on how many there are.
void sign_in(c10d::Store& store, const LaunchEnvironment& launched) {
  if (store.add(fmt::format("rank_{}", launched.rank), 1) != 1)
    throw UserError(
        "{}: another process has signed in at {}:{} as rank {} before; two jobs share the port, or two "
        "processes the rank (RANK, MASTER_PORT)",
        who(launched), launched.master_addr, launched.master_port, launched.rank);
  const std::string size = std::to_string(launched.world_size);
  const std::string agreed = text_of(store.compareSet("world_size", bytes_of(""), bytes_of(size)));
  if (agreed != size)
    throw UserError(
        "{}: the job at {}:{} has {} ranks, this process was started as one of {} (WORLD_SIZE); start all "
        "with the same number",
        who(launched), launched.master_addr, launched.master_port, agreed, launched.world_size);
  store.add("joined", 1);
}

void wait_for_all(c10d::Store& store, const LaunchEnvironment& launched, std::chrono::milliseconds timeout) {
  constexpr auto kLongestPause = std::chrono::milliseconds(200);
  const auto start = Clock::now();
  auto pause = std::chrono::milliseconds(1);
  for (;;) {
    const int64_t joined = store.add("joined", 0);
    if (joined >= launched.world_size) return;
    if (Clock::now() - start > timeout)
      throw EnvironmentError(
          "{}: only {} of {} ranks have come to {}:{} within {} s; is every process started, and with this "
          "address? (distributed.timeout_seconds)",
          who(launched), joined, launched.world_size, launched.master_addr, launched.master_port,
          seconds(timeout));
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace rendezvous_detail

c10::intrusive_ptr<c10d::Store> meet(const LaunchEnvironment& launched, std::chrono::milliseconds timeout) {
  namespace inner = rendezvous_detail;
  const c10::intrusive_ptr<c10d::Store> whole = inner::connect(launched, timeout);
  // A launcher's store outlives the processes it starts again: each start has keys of its own.
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>(fmt::format("osdn_start_{}", launched.restart_count), whole);
  try {
    inner::sign_in(*store, launched);
    inner::wait_for_all(*store, launched, timeout);
  } catch (const c10::Error& failure) {
    throw EnvironmentError("{}: lost the job's meeting place {}:{} while the ranks were gathering: {}",
                           inner::who(launched), launched.master_addr, launched.master_port,
                           inner::first_line(failure.what_without_backtrace()));
  }
  return store;
}

}  // namespace osdn::dist::detail
