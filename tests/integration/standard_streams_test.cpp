// What the program does with the three streams that it is started with, whatever they are.
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/fs.h"
#include "tests/integration/run_fixture.h"

namespace osdn::standard_streams_test {
namespace {

using test::ProcessResult;
using test::RunFolder;

/// A command line of the shell in which $OSDN is the program.
ProcessResult shell(const std::string& line, const std::string& folder) {
  return test::Process({"/bin/sh", "-c", line}, folder, {{"OSDN", OSDN_BINARY}}).wait();
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a result that cannot be written is an error of every command that prints one",
          "[standard_streams]") {
  const RunFolder folder;
  REQUIRE(folder.train({"train.steps=3"}).exit_code == 0);
  for (const std::string command :
       {"version", "config print small.yaml", "config check small.yaml", "config reference",
        "inspect runs/small", "report runs/small", "eval runs/small --suite perplexity --max-documents 2",
        "generate runs/small --prompt x --max-tokens 2", "tokenizer encode shards/tokenizer.model --text x",
        "prepare --builtin --megabytes 1 --vocab-size 400 --output made"}) {
    const ProcessResult full = shell("$OSDN " + command + " >/dev/full", folder.path());
    INFO(command << "\n" << full.err);
    CHECK(full.exit_code == 3);
    CHECK(mentions(full.err, "standard output"));
  }
  CHECK(mentions(shell("$OSDN version >/dev/full", folder.path()).err, "No space left on device"));
  const ProcessResult closed = shell("$OSDN version >&-", folder.path());
  CHECK(closed.exit_code == 3);
  CHECK(mentions(closed.err, "Bad file descriptor"));
  CHECK(shell("$OSDN version", folder.path()).exit_code == 0);
}

TEST_CASE("closed streams take no messages into the files of a run", "[standard_streams]") {
  const RunFolder folder;
  const RunFolder closed;
  REQUIRE(folder.train().exit_code == 0);
  CHECK(shell("$OSDN train small.yaml <&- >&- 2>&-", closed.path()).exit_code == 0);
  CHECK(test::timeless_metrics(closed.run()) == test::timeless_metrics(folder.run()));
  CHECK(test::model_bytes(closed.run(), 12) == test::model_bytes(folder.run(), 12));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(closed.run())) {
    if (!entry.is_regular_file() || entry.path().filename() == "log.txt") continue;
    INFO(entry.path().string());
    CHECK_FALSE(mentions(read_file(entry.path().string()), " info small: "));
  }
  CHECK(shell("$OSDN train absent.yaml <&- >&- 2>&-", closed.path()).exit_code == 2);
}

TEST_CASE("a terminal that cannot go back in its line gets plain lines", "[standard_streams]") {
  const RunFolder folder;
  if (!std::filesystem::exists("/usr/bin/script")) return;
  const auto at_terminal = [&](const std::string& kind, const std::string& name) {
    const std::string line =
        "TERM=" + kind + " $OSDN train small.yaml --set train.steps=2 --set run.name=" + name;
    return shell("/usr/bin/script -qec '" + line + "' /dev/null", folder.path()).out;
  };
  const std::string capable = at_terminal("xterm", "capable");
  INFO(capable);
  CHECK(mentions(capable, "capable ["));
  CHECK(mentions(capable, "\x1b[K"));
  const std::string dumb = at_terminal("dumb", "plain");
  INFO(dumb);
  CHECK(mentions(dumb, "plain: 2 of 2"));
  CHECK_FALSE(mentions(dumb, "\x1b"));
}

}  // namespace osdn::standard_streams_test
