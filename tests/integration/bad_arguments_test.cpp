// Every command with arguments that cannot be right: one line that says what is wrong, the exit code of its
// kind, soon, and nothing on standard output.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "base/fs.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace osdn::test {
namespace bad_arguments_test {

using Arguments = std::vector<std::string>;

/// Commands with @ where they take a path.
const std::vector<Arguments>& commands_with_a_path() {
  static const std::vector<Arguments> commands = {
      {"prepare", "@"},
      {"prepare", "--input", "@", "--format", "jsonl", "--output", "made", "--vocab-size", "300"},
      {"prepare", "--builtin", "--megabytes", "1", "--output", "made", "--tokenizer", "@"},
      {"tokenizer", "train", "--input", "@", "--output", "made.model", "--vocab-size", "300"},
      {"tokenizer", "encode", "@", "--text", "x"},
      {"tokenizer", "decode", "@", "1"},
      {"train", "@"},
      {"eval", "@", "--suite", "perplexity"},
      {"generate", "@", "--prompt", "x"},
      {"report", "@", "--output", "made.html"},
      {"inspect", "@"},
      {"import", "@", "--output", "imported"},
      {"export", "@", "--output", "exported"},
      {"config", "check", "@"},
      {"config", "print", "@"}};
  return commands;
}

const std::vector<Arguments>& commands_that_need_more() {
  static const std::vector<Arguments> commands = {{"prepare"},
                                                  {"tokenizer"},
                                                  {"tokenizer", "train"},
                                                  {"tokenizer", "encode"},
                                                  {"tokenizer", "decode"},
                                                  {"train"},
                                                  {"eval"},
                                                  {"generate"},
                                                  {"report"},
                                                  {"inspect"},
                                                  {"import"},
                                                  {"export"},
                                                  {"config"},
                                                  {"config", "check"},
                                                  {"config", "print"}};
  return commands;
}

std::string joined(const Arguments& arguments) {
  std::string line = "osdn";
  for (const std::string& argument : arguments) line += " " + argument;
  return line;
}

/// Lines that are no progress ("... info training the tokenizer").
int64_t num_messages(const std::string& text) {
  int64_t count = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    count += line.find(" info ") == std::string::npos ? 1 : 0;
  return count;
}

/// Returns what was printed to standard error.
std::string check_refusal(const Arguments& arguments, const std::string& folder) {
  const auto start = std::chrono::steady_clock::now();
  const ProcessResult result = run_osdn(arguments, folder);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  INFO(joined(arguments) << "\nexit code " << result.exit_code << " after " << seconds << " s\n"
                         << result.err);
  CHECK(result.exit_code >= 2);
  CHECK(result.exit_code <= 4);
  CHECK(result.out.empty());
  CHECK(num_messages(result.err) == 1);
  for (const char* sign : {"terminate called", "Exception raised from", "frame #", "what():", "basic_string"})
    CHECK(result.err.find(sign) == std::string::npos);
  CHECK(seconds < 5);
  return result.err;
}

void check_paths(const std::string& folder, const std::string& path) {
  for (Arguments arguments : commands_with_a_path()) {
    std::replace(arguments.begin(), arguments.end(), std::string("@"), path);
    const std::string message = check_refusal(arguments, folder);
    INFO(joined(arguments) << "\n" << message);
    CHECK(message.find(path) != std::string::npos);
  }
}

}  // namespace bad_arguments_test

TEST_CASE("A command without what it needs says so", "[bad_arguments]") {
  const TemporaryDirectory folder;
  for (const auto& command : bad_arguments_test::commands_that_need_more())
    bad_arguments_test::check_refusal(command, folder.path());
}

TEST_CASE("An unknown option is named", "[bad_arguments]") {
  const TemporaryDirectory folder;
  for (bad_arguments_test::Arguments command : bad_arguments_test::commands_with_a_path()) {
    command.push_back("--frobnicate");
    const std::string message = bad_arguments_test::check_refusal(command, folder.path());
    CHECK(message.find("--frobnicate") != std::string::npos);
    CHECK(message.find("osdn " + command.front()) != std::string::npos);
  }
}

TEST_CASE("A path to nothing is named", "[bad_arguments]") {
  const TemporaryDirectory folder;
  bad_arguments_test::check_paths(folder.path(), "absent");
}

TEST_CASE("A directory where a file belongs, an empty one where a run does, is named", "[bad_arguments]") {
  const TemporaryDirectory folder;
  std::filesystem::create_directory(folder.path() + "/directory");
  bad_arguments_test::check_paths(folder.path(), "directory");
}

TEST_CASE("An empty file is named", "[bad_arguments]") {
  const TemporaryDirectory folder;
  atomic_write(folder.path() + "/empty", "");
  bad_arguments_test::check_paths(folder.path(), "empty");
}

TEST_CASE("A file of something else is named", "[bad_arguments]") {
  const TemporaryDirectory folder;
  std::string bytes;
  for (int i = 0; i < 3000; ++i) bytes += static_cast<char>(i * 7919 >> 5);
  atomic_write(folder.path() + "/foreign", bytes);
  bad_arguments_test::check_paths(folder.path(), "foreign");
}

TEST_CASE("A path that cannot be looked at is named", "[bad_arguments]") {
  // A link to itself: nobody can read it, not even root.
  const TemporaryDirectory folder;
  std::filesystem::create_symlink("unreadable", folder.path() + "/unreadable");
  bad_arguments_test::check_paths(folder.path(), "unreadable");
}

}  // namespace osdn::test
