// The program: one subcommand a file. Every exception ends here, as one line on stderr and an exit code
// (base/error.h).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <system_error>

#include "apps/bench.h"
#include "apps/config.h"
#include "apps/eval.h"
#include "apps/export.h"
#include "apps/generate.h"
#include "apps/import.h"
#include "apps/inspect.h"
#include "apps/prepare.h"
#include "apps/report.h"
#include "apps/tokenizer.h"
#include "apps/train.h"
#include "apps/version.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/log.h"
#include "base/standard_streams.h"
#include "tensor/failure.h"
#include "tensor/logging.h"

namespace osdn::apps {
namespace {

// LibTorch appends a stack trace to its messages.
std::string first_part(const std::string& message) {
  const size_t trace = message.find("\nException raised from");
  return message.substr(0, trace);
}

int report_failure(ExitCode code, const std::string& message) {
  log::error("{}", message);
  return static_cast<int>(code);
}

// Threads that wait at a barrier sleep instead of spinning, unless the user chose otherwise: on a machine
// with other work a spinning thread takes the core that the one it waits for needs (twice the time a step was
// seen), and on an idle one nothing is lost. The OpenMP runtime reads the variable when it is loaded, so it
// is set before any library starts.
void before_libraries(int /*argc*/, char** /*argv*/, char** /*environment*/) {
  setenv("OMP_WAIT_POLICY", "PASSIVE", 0);
  open_standard_streams();
}
__attribute__((section(".preinit_array"), used)) void (*const kBeforeLibraries)(int, char**,
                                                                                char**) = before_libraries;

// As far as it was understood: "osdn tokenizer encode".
std::string given_command(const CLI::App& root) {
  std::string name = root.get_name();
  for (const CLI::App* app = &root; !app->get_subcommands().empty();) {
    app = app->get_subcommands().front();
    name += " " + app->get_name();
  }
  return name;
}

// CLI11's words for a number that is none, with what was expected.
std::string told(const CLI::ParseError& failure) {
  const std::string text = failure.what();
  const std::string start = "Could not convert: ";
  const size_t equals = text.find(" = ");
  if (text.rfind(start, 0) != 0 || equals == std::string::npos) return text;
  return fmt::format("{}: expected a number, got \"{}\" (whole numbers are written out: 1000000)",
                     text.substr(start.size(), equals - start.size()), text.substr(equals + 3));
}

int run(int argc, char** argv) {
  CLI::App root("osdn: trains delta-rule language models with the preconditioned write of OSDN", "osdn");
  root.set_version_flag("--version", version_text);
  root.footer(
      "Example:\n  osdn prepare configs/quickstart.yaml\n  osdn train configs/quickstart.yaml\n"
      "`osdn COMMAND --help` explains a command. Exit codes: 0 done, 2 user error, 3 environment error, 4 "
      "data or\n"
      "checkpoint damaged, 5 internal error, 130 and 143 interrupted after a checkpoint.");
  root.require_subcommand(0, 1);
  add_prepare(root);
  add_tokenizer(root);
  add_train(root);
  add_eval(root);
  add_generate(root);
  add_report(root);
  add_inspect(root);
  add_import(root);
  add_export(root);
  add_bench(root);
  add_config(root);
  add_version(root);
  try {
    root.parse(argc, argv);
  } catch (const CLI::RuntimeError& stop) {
    return stop.get_exit_code();  // a command that ended as it should, with a code of its own
  } catch (const CLI::ParseError& failure) {
    if (failure.get_exit_code() == 0) return root.exit(failure);  // help and version come this way too
    const std::string command = given_command(root);
    std::fprintf(stderr, "%s: %s (`%s --help` explains it)\n", command.c_str(), told(failure).c_str(),
                 command.c_str());
    return static_cast<int>(ExitCode::kUserError);
  }
  if (root.get_subcommands().empty()) {
    std::fputs(root.help().c_str(), stderr);
    return static_cast<int>(ExitCode::kUserError);
  }
  return 0;
}

int run_caught(int argc, char** argv) {
  report_crashes();
  choose_libtorch_logging();
  try {
    const int code = run(argc, argv);
    const std::string lost = finish_standard_output();
    if (code == 0 && !lost.empty())
      throw EnvironmentError("standard output: the result is not whole, a write failed: {}", lost);
    return code;
  } catch (const Error& failure) {
    return report_failure(failure.code(), failure.what());
  } catch (const std::system_error&
               failure) {  // of a path that cannot be looked at: a loop of links, no permission
    return report_failure(ExitCode::kEnvironmentError, failure.what());
  } catch (const std::exception& failure) {
    if (is_out_of_memory(failure))
      return report_failure(
          ExitCode::kEnvironmentError,
          fmt::format("out of memory: use a machine with more, or ask for less at a time ({})",
                      first_part(failure.what())));
    return report_failure(ExitCode::kInternalError, first_part(failure.what()));
  }
}

}  // namespace
}  // namespace osdn::apps

int main(int argc, char** argv) { return osdn::apps::run_caught(argc, argv); }
