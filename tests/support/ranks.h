// The ranks of a job as forked processes of the test itself: each runs a function and hands back what it
// says. Fork before LibTorch has threads of its own: one test of this kind a process keeps its tensors tiny.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "dist/launch_environment.h"

namespace osdn::test {

/// A TCP port on the loopback interface that is free, or, while the object lives, taken by it.
class LoopbackPort {
 public:
  LoopbackPort() {
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (socket_ < 0 || ::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(socket_, 8) != 0 ||
        ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("no port on the loopback interface");
    port_ = ntohs(address.sin_port);
  }
  ~LoopbackPort() { release(); }
  LoopbackPort(const LoopbackPort&) = delete;
  LoopbackPort& operator=(const LoopbackPort&) = delete;

  int number() const { return port_; }
  void release() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  int socket_ = -1;
  int port_ = 0;
};

inline int free_port() {
  LoopbackPort port;
  return port.number();
}

/// Of ranks on this machine that meet at this port.
inline dist::LaunchEnvironment rank_on_loopback(int rank, int world_size, int port) {
  return {.rank = rank,
          .world_size = world_size,
          .local_rank = rank,
          .local_world_size = world_size,
          .master_addr = "127.0.0.1",
          .master_port = port};
}

struct RankResult {
  int exit_code = -1;  // of an osdn::Error its code; 128 + signal when a signal ended it
  std::string text;    // what the function returned, or the message of what it threw
};

/// Processes that run `body(0)` .. `body(world_size - 1)`.
class Ranks {
 public:
  using Body = std::function<std::string(int rank)>;

  Ranks(int world_size, const Body& body) {
    for (int rank = 0; rank < world_size; ++rank) start(rank, body);
  }
  ~Ranks() {
    for (const Member& member : members_) {
      if (member.pid > 0) {
        ::kill(member.pid, SIGKILL);
        ::waitpid(member.pid, nullptr, 0);
      }
      ::close(member.output);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void signal(int rank, int number) const { ::kill(members_[static_cast<size_t>(rank)].pid, number); }

  RankResult wait(int rank) {
    Member& member = members_[static_cast<size_t>(rank)];
    RankResult result;
    char buffer[4096];
    for (ssize_t count = 0; (count = ::read(member.output, buffer, sizeof(buffer))) > 0;)
      result.text.append(buffer, static_cast<size_t>(count));
    int status = 0;
    ::waitpid(member.pid, &status, 0);
    member.pid = -1;
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
  }
  std::vector<RankResult> wait_all() {
    std::vector<RankResult> results;
    for (size_t rank = 0; rank < members_.size(); ++rank) results.push_back(wait(static_cast<int>(rank)));
    return results;
  }

 private:
  struct Member {
    pid_t pid = -1;
    int output = -1;
  };

  void start(int rank, const Body& body) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("fork failed");
    if (pid > 0) {
      ::close(ends[1]);
      members_.push_back({.pid = pid, .output = ends[0]});
      return;
    }
    ::alarm(120);  // a rank that hangs ends its test, not the whole run
    std::string text;
    int code = 0;
    try {
      text = body(rank);
    } catch (const Error& failure) {
      text = failure.what();
      code = static_cast<int>(failure.code());
    } catch (const std::exception& failure) {
      text = std::string("unexpected: ") + failure.what();
      code = 1;
    }
    for (size_t written = 0; written < text.size();) {
      const ssize_t count = ::write(ends[1], text.data() + written, text.size() - written);
      if (count <= 0) break;
      written += static_cast<size_t>(count);
    }
    ::_exit(code);
  }

  std::vector<Member> members_;
};

}  // namespace osdn::test
