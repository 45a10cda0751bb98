// Work in a forked child whose file calls are counted or disturbed, and what lies in a folder afterwards.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "tests/faults/inject.h"

namespace osdn::faults {

struct Outcome {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string messages;
};

/// A folder for the files of a test; the calls below work() count. A real path: calls are told apart by it.
class Bench {
 public:
  Bench() {
    // In memory where there is some (containers often have 64 MB): thousands of syncs would take a disk
    // minutes.
    const char* const memory = "/dev/shm";
    const bool roomy = ::access(memory, W_OK) == 0 && free_space_bytes(memory) > (uint64_t{1} << 29);
    const std::string base = roomy ? memory : std::filesystem::temp_directory_path().string();
    std::string pattern = std::filesystem::canonical(base).string() + "/osdn-faults-XXXXXX";
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("no folder for the test in " + base);
    root_ = pattern;
    clear();
  }
  ~Bench() {
    std::error_code failure;
    std::filesystem::remove_all(root_, failure);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  std::string root() const { return root_; }
  std::string work() const { return root_ + "/work"; }
  std::string record() const { return root_ + "/record"; }

  void clear() const {
    std::filesystem::remove_all(work());
    std::filesystem::create_directories(work());
    std::filesystem::remove(record());
  }

  /// Runs `body` in a child as the program runs a command: its exit code, its error as a line on stderr.
  Outcome run(const Plan& plan, const std::function<ExitCode()>& body) const {
    return wait(start(plan, body));
  }

  pid_t start(Plan plan, const std::function<ExitCode()>& body) const {
    const std::string messages = root_ + "/messages";
    std::filesystem::remove(messages);
    const pid_t child = ::fork();
    if (child == 0) {
      const int file = ::open(messages.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      ::dup2(file, STDERR_FILENO);
      ::dup2(file, STDOUT_FILENO);
      plan.under = work();
      plan.record = record();
      arm(plan);
      ::_exit(as_program(body));
    }
    return child;
  }

  Outcome wait(pid_t child) const {
    int status = 0;
    ::waitpid(child, &status, 0);
    return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            .messages = read_file(root_ + "/messages")};
  }

  /// The lines of the calls since clear().
  std::vector<std::string> calls() const {
    std::vector<std::string> lines;
    if (!std::filesystem::exists(record())) return lines;
    std::istringstream text(read_file(record()));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }

 private:
  static int as_program(const std::function<ExitCode()>& body) {
    try {
      return static_cast<int>(body());
    } catch (const Error& failure) {
      log::error("{}", failure.what());
      return static_cast<int>(failure.code());
    } catch (const std::exception& failure) {
      log::error("{}", failure.what());
      return static_cast<int>(ExitCode::kInternalError);
    }
  }

  std::string root_;
};

/// Content by path below `folder`.
inline std::map<std::string, std::string> files_below(const std::string& folder) {
  std::map<std::string, std::string> files;
  if (!std::filesystem::exists(folder)) return files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    files[name] = entry.is_directory() ? "directory" : read_file(entry.path().string());
  }
  return files;
}

/// Names whose content differs or that one of the two does not have, a line each.
inline std::string differing_names(const std::map<std::string, std::string>& found,
                                   const std::map<std::string, std::string>& expected) {
  std::string names;
  for (const auto& [name, content] : found)
    if (expected.count(name) == 0)
      names += name + ": not expected\n";
    else if (expected.at(name) != content)
      names += name + ": differs\n";
  for (const auto& [name, content] : expected)
    if (found.count(name) == 0) names += name + ": missing\n";
  return names;
}

/// The kind and the path of a call, without numbers: what calls of the same sort share.
inline std::string sort_of(const std::string& call) {
  std::string text;
  for (const char c : call)
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) text += c;
  return text;
}

/// Numbers, from 1, of the calls to disturb: all of them, or the last one of each sort.
inline std::vector<int64_t> calls_to_disturb(const std::vector<std::string>& calls, bool all) {
  std::vector<int64_t> numbers;
  std::map<std::string, int64_t> last;
  for (size_t i = 0; i < calls.size(); ++i) {
    last[sort_of(calls[i])] = static_cast<int64_t>(i) + 1;
    if (all) numbers.push_back(static_cast<int64_t>(i) + 1);
  }
  if (!all)
    for (const auto& [sort, number] : last) numbers.push_back(number);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

/// Everything that can go wrong with a call of this kind.
inline std::vector<Plan> faults_of(const std::string& call) {
  const auto is = [&](const char* kind) { return call.rfind(std::string(kind) + " ", 0) == 0; };
  std::vector<Plan> plans;
  const auto add = [&](Action action, int error) {
    Plan plan;
    plan.action = action;
    plan.error = error;
    plans.push_back(plan);
  };
  add(Action::kKillAfter, 0);
  if (is("lock")) return plans;  // refusals are another matter (base/fs_test.cpp)
  add(Action::kFail, EIO);
  if (is("write") || is("create") || is("mkdir")) add(Action::kFailOn, ENOSPC);
  if (is("sync")) add(Action::kFail, EDQUOT);
  if (is("rename")) add(Action::kFail, ENOSPC);
  if (is("write")) {
    add(Action::kShort, 0);
    add(Action::kTorn, 0);
  }
  return plans;
}

/// The message names the path that failed, or the folder or final name that it stands for, and the reason.
inline bool names_path_and_reason(const std::string& messages, const std::string& call, int error) {
  if (messages.find(std::strerror(error)) == std::string::npos) return false;
  const std::string path = call.substr(call.find(' ') + 1, call.find(" -> ") - call.find(' ') - 1);
  const size_t staged = path.find(".tmp-");
  return messages.find(path) != std::string::npos ||
         messages.find(std::filesystem::path(path).parent_path().string()) != std::string::npos ||
         (staged != std::string::npos && messages.find(path.substr(0, staged)) != std::string::npos);
}

/// The rule that makes a name trustworthy after a power cut, on the record of an undisturbed run: when a name
/// appears by a rename, everything below it that was written has been synced since, and so have the folders
/// of it; and the folder that got the name is synced before the next name appears. Returns what breaks it.
inline std::vector<std::string> unsynced_names(const std::vector<std::string>& calls) {
  std::vector<std::string> broken;
  std::map<std::string, bool> dirty;  // file or folder: changed since its last sync
  const auto parent = [](const std::string& path) {
    return std::filesystem::path(path).parent_path().string();
  };
  std::string awaited;  // folder that got a name last
  for (const std::string& call : calls) {
    const std::string kind = call.substr(0, call.find(' '));
    const std::string rest = call.substr(call.find(' ') + 1);
    if (kind == "write" || kind == "truncate") dirty[rest] = true;
    if (kind == "create") dirty[rest] = dirty[parent(rest)] = true;
    if (kind == "mkdir") dirty[parent(rest)] = true;
    if (kind == "sync") dirty[rest] = false;
    if (kind == "sync" && rest == awaited) awaited.clear();
    if (kind != "rename") continue;
    if (!awaited.empty()) broken.push_back("not synced before " + call + ": " + awaited);
    const std::string from = rest.substr(0, rest.find(" -> "));
    const std::string to = rest.substr(rest.find(" -> ") + 4);
    for (const auto& [path, is_dirty] : dirty)
      if (is_dirty && (path == from || path.rfind(from + "/", 0) == 0))
        broken.push_back("not synced at " + call + ": " + path);
    awaited = parent(to);
  }
  if (!awaited.empty()) broken.push_back("not synced at the end: " + awaited);
  return broken;
}

}  // namespace osdn::faults
