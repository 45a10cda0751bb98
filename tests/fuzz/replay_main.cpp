// Runs a fuzz target over saved inputs, without a fuzzer: `fuzz_TARGET FILE_OR_FOLDER...`. Builds that have
// no libFuzzer replay the corpus with it. Fails when an input ends the process, takes too long, or none was
// found.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/fs.h"
#include "tests/fuzz/support.h"

namespace osdn::fuzz {
namespace {

constexpr double kMaxSeconds = 20;  // an input; sanitizers on a busy machine included

std::vector<std::string> inputs_of(const std::string& argument) {
  if (!std::filesystem::is_directory(argument)) return {argument};
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(argument))
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

int replay(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  size_t count = 0;
  for (int i = 1; i < argc; ++i) {
    for (const std::string& path : inputs_of(argv[i])) {
      const std::string bytes = read_file(path);
      std::printf("%s\n", path.c_str());
      std::fflush(stdout);
      last_refusal().clear();
      const auto start = Clock::now();
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (seconds > kMaxSeconds) fail(path + ": took " + std::to_string(seconds) + " seconds");
      if (!last_refusal().empty()) std::printf("  refused: %s\n", last_refusal().c_str());
      ++count;
    }
  }
  std::printf("%zu inputs replayed\n", count);
  return count > 0 ? 0 : 1;
}

}  // namespace
}  // namespace osdn::fuzz

int main(int argc, char** argv) { return osdn::fuzz::replay(argc, argv); }
