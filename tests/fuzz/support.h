// What the fuzz targets share: a file to read from, the cutting of one input into several parts, and
// the one rule that they all check: whatever the bytes, a reader either succeeds or throws an error of its
// input (UserError, DataError). A broken invariant, a foreign exception or a crash ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"

namespace osdn::fuzz {

/// Ends the process with a message: a fault that the fuzzer must report.
[[noreturn]] inline void fail(const std::string& reason) {
  std::fprintf(stderr, "fuzz: %s\n", reason.c_str());
  std::abort();
}

inline void require(bool condition, const char* claim) {
  if (!condition) fail(std::string("does not hold: ") + claim);
}

/// What the last refused input was refused for; replay prints it.
inline std::string& last_refusal() {
  static std::string text;
  return text;
}

/// Runs `read`. True when it succeeded, false when it refused its input as a user's or a file's fault.
template <typename Read>
bool accepts(Read&& read) {
  static const bool quiet = [] {
    log::set_level(log::Level::kError);
    return true;
  }();
  static_cast<void>(quiet);
  try {
    read();
    return true;
  } catch (const Error& error) {
    last_refusal() = error.what();
    if (error.code() == ExitCode::kUserError || error.code() == ExitCode::kDataError) return false;
    fail(std::string("not an error of the input: ") + error.what());
  } catch (const std::exception& error) {
    fail(std::string("an exception that is none of ours: ") + error.what());
  }
}

/// A file for readers that take a path, in a folder of its own that goes when the process ends. Put TMPDIR
/// into memory (/dev/shm) for a long run.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& name = "input") : path_(folder_.path() + "/" + name) {}

  void assign(std::string_view bytes) { File::create(path_).write(bytes); }
  const std::string& path() const { return path_; }

 private:
  TemporaryDirectory folder_;
  std::string path_;
};

inline std::string_view view(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// An input that stands for several files: parts between separators, at most `count`; missing ones are empty.
inline std::vector<std::string_view> parts(std::string_view input, size_t count) {
  constexpr std::string_view kSeparator = "\n%%%%\n";
  std::vector<std::string_view> result;
  while (result.size() + 1 < count) {
    const size_t end = input.find(kSeparator);
    if (end == std::string_view::npos) break;
    result.push_back(input.substr(0, end));
    input.remove_prefix(end + kSeparator.size());
  }
  result.push_back(input);
  result.resize(count);
  return result;
}

}  // namespace osdn::fuzz

/// Every target defines it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
