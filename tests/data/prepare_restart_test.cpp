#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>
#include <stdexcept>

#include "base/fs.h"
#include "base/json.h"
#include "data/builtin_corpus.h"
#include "data/prepare.h"
#include "data/sample_order.h"
#include "data/shard.h"
#include "tests/data/support.h"
#include "tests/support/catch.h"

namespace osdn::data {
namespace prepare_restart_test {

/// Files of several stretches of input, with a document that several workers encode together. `bytes`: of the
/// first.
class Corpus {
 public:
  explicit Corpus(size_t bytes = 2'200'000) {
    int64_t document = 0;
    const auto line = [&] {
      return Json({{"text", builtin_document(kBuiltinSeed, document++)}}).dump() + "\n";
    };
    std::string lines;
    while (lines.size() < bytes) lines += line();
    atomic_write(folder_.path() + "/a.jsonl", lines + "{\"text\": \"\"}\n");
    std::string book;
    while (book.size() < bytes / 2) book += builtin_document(kBuiltinSeed, document++);
    atomic_write(folder_.path() + "/b.txt", book);
    lines.clear();
    while (lines.size() < 300'000) lines += line();
    atomic_write(folder_.path() + "/c.jsonl", lines);
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  config::Prepare settings(const std::string& output) const {
    config::Prepare settings;
    settings.input = {path("a.jsonl"), path("b.txt"), path("c.jsonl")};
    settings.output = path(output);
    settings.validation_fraction = 0.1;
    settings.tokenizer.vocab_size = 700;
    settings.shard_tokens = 50'000;
    settings.workers = 2;
    return settings;
  }

 private:
  TemporaryDirectory folder_;
};

/// Content by name, but for prepare.json, which holds times.
std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (const std::string name = entry.path().filename().string();
        name.front() != '.' && name != "prepare.json")
      files[name] = read_file(entry.path().string());
  return files;
}

/// Set once, uninterrupted, for all cases.
struct Reference {
  Corpus corpus;
  PrepareReport report = prepare(corpus.settings("reference"), {});
  std::map<std::string, std::string> files = contents(corpus.path("reference"));
};
const Reference& reference() {
  static const Reference made;
  return made;
}

struct Identity {
  ino_t inode = 0;
  int64_t modified_ns = 0;
  bool operator==(const Identity&) const = default;
};
Identity identity(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return {.inode = status.st_ino,
          .modified_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

/// Tokenizer and shards that the journal in `output` calls done.
std::map<std::string, Identity> finished_files(const std::string& output) {
  std::map<std::string, Identity> files;
  const std::string hidden = output + "/.prepare/";
  if (!std::filesystem::exists(hidden + "journal.json")) return files;
  const Json journal = read_json(hidden + "journal.json");
  files["tokenizer.model"] = identity(hidden + "tokenizer.model");
  for (const std::string side : {"train", "validation"})
    for (int64_t shard = 0; shard < journal.at(side).at("closed_shards").get<int64_t>(); ++shard) {
      const std::string name = fmt::format("{}-{:05d}.h5", side.substr(0, 5), shard);
      files[name] = identity(hidden + name);
    }
  return files;
}

struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

/// Options that end the call once `bytes` of the input are encoded; stages go to `stages`.
PrepareOptions until(int64_t bytes, std::set<std::string>* stages = nullptr) {
  PrepareOptions options;
  options.progress = [=](const PrepareProgress& progress) {
    if (stages != nullptr) stages->insert(progress.stage);
    if (progress.stage == "encoding" && progress.bytes_done >= bytes) throw Interrupted();
  };
  return options;
}

}  // namespace prepare_restart_test

TEST_CASE("Interrupted preparations continue with equal bytes, whatever the number of workers",
          "[prepare_restart]") {
  const prepare_restart_test::Reference& whole = prepare_restart_test::reference();
  REQUIRE(whole.report.train.shards.size() > 6);
  REQUIRE(whole.report.validation.shards.size() > 1);
  config::Prepare settings = whole.corpus.settings("interrupted");
  std::map<std::string, prepare_restart_test::Identity> finished;
  int64_t workers = 0;
  for (const int64_t bytes : {1, 1'500'000, 2'000'000, 2'500'000}) {
    settings.workers = ++workers;
    std::set<std::string> stages;
    CHECK_THROWS_AS(prepare(settings, prepare_restart_test::until(bytes, &stages)),
                    prepare_restart_test::Interrupted);
    // The tokenizer is trained once.
    CHECK(stages.count("training the tokenizer") == (workers == 1 ? 1U : 0U));
    CHECK(prepare_restart_test::contents(settings.output).empty());
    const auto now = prepare_restart_test::finished_files(settings.output);
    CHECK(now.size() >= finished.size());
    for (const auto& [name, identity] : finished) {
      CAPTURE(name);
      REQUIRE(now.count(name) == 1);
      CHECK(now.at(name) == identity);
    }
    finished = now;
  }
  CHECK(finished.size() > 5);
  int64_t first_bytes = -1;
  int64_t bytes_before = -1;
  PrepareOptions options;
  options.progress = [&](const PrepareProgress& progress) {
    if (progress.stage != "encoding" || first_bytes >= 0) return;
    first_bytes = progress.bytes_done;
    bytes_before = progress.bytes_before;
  };
  const PrepareReport report = prepare(settings, options);
  CHECK(bytes_before >= 2'500'000);  // not encoded again
  CHECK(first_bytes == bytes_before);
  CHECK((prepare_restart_test::contents(settings.output) == whole.files));
  for (const auto& [name, identity] : finished) {
    CAPTURE(name);
    CHECK(prepare_restart_test::identity(settings.output + "/" + name) == identity);
  }
  CHECK(report.train.tokens == whole.report.train.tokens);
  CHECK(report.train.bytes == whole.report.train.bytes);
  CHECK(report.validation.documents == whole.report.validation.documents);
  CHECK(report.dropped_documents == 1);
  CHECK(report.checked_documents == whole.report.checked_documents);
  CHECK_FALSE(std::filesystem::exists(settings.output + "/.prepare"));
}

TEST_CASE("Killed at random moments again and again, preparation ends with equal bytes and redoes no shard",
          "[prepare_restart]") {
  const prepare_restart_test::Reference& whole = prepare_restart_test::reference();
  uint64_t state = 11;
  int64_t killed = 0;
  for (const bool trains : {true, false}) {
    config::Prepare settings = whole.corpus.settings(trains ? "killed-trains" : "killed-encodes");
    double seconds = whole.report.seconds;
    if (!trains) {
      // Training takes most of the time of these three megabytes.
      settings.tokenizer_model = whole.report.tokenizer_model;
      config::Prepare timed = settings;
      timed.output += "-timed";
      seconds = prepare(timed, {}).seconds;
    }
    double longest = seconds * 1e6 * 0.9;
    const auto killed_before = killed;
    std::map<std::string, prepare_restart_test::Identity> finished;
    for (int attempt = 0; attempt < (trains ? 8 : 16); ++attempt) {
      settings.workers = 1 + static_cast<int64_t>(mix64(++state) % 3);
      const pid_t child = ::fork();
      if (child == 0) {
        prepare(settings, {});
        ::_exit(0);
      }
      ::usleep(static_cast<useconds_t>(longest * static_cast<double>(mix64(++state) % 1000) / 1000.0));
      ::kill(child, SIGKILL);
      int status = 0;
      ::waitpid(child, &status, 0);
      killed += WIFSIGNALED(status) ? 1 : 0;
      // Under final names: nothing, or files that are whole, once everything is.
      const bool complete = std::filesystem::exists(settings.output + "/.prepare/prepare.json") ||
                            std::filesystem::exists(settings.output + "/prepare.json");
      if (std::filesystem::exists(settings.output)) {
        const auto visible = prepare_restart_test::contents(settings.output);
        CHECK((complete || visible.empty()));
        for (const auto& [name, content] : visible) {
          CAPTURE(name);
          CHECK((content == whole.files.at(name)));
        }
      }
      if (complete && killed - killed_before >= 3) break;
      if (complete) {  // the machine is faster than it was when the time was taken
        std::filesystem::remove_all(settings.output);
        finished.clear();
        longest /= 2;
        continue;
      }
      for (const auto& [name, identity] : prepare_restart_test::finished_files(settings.output)) {
        CAPTURE(name);
        if (finished.count(name) != 0) CHECK(finished.at(name) == identity);
        finished[name] = identity;
      }
    }
    prepare(settings, {});
    CHECK((prepare_restart_test::contents(settings.output) == whole.files));
    for (const auto& [name, identity] : finished) {
      CAPTURE(name);
      CHECK(prepare_restart_test::identity(settings.output + "/" + name) == identity);
    }
  }
  CHECK(killed > 4);
}

TEST_CASE("A shard that was finished after the last entry in the journal is kept", "[prepare_restart]") {
  const prepare_restart_test::Reference& whole = prepare_restart_test::reference();
  const config::Prepare settings = whole.corpus.settings("behind");
  CHECK_THROWS_AS(prepare(settings, prepare_restart_test::until(2'000'000)),
                  prepare_restart_test::Interrupted);
  // As if the process had finished one shard more than its journal says, and had damaged another one.
  const std::string hidden = settings.output + "/.prepare/";
  const auto next =
      static_cast<size_t>(read_json(hidden + "journal.json").at("train").at("closed_shards").get<int64_t>());
  REQUIRE(next > 1);
  const std::string kept = fmt::format("train-{:05d}.h5", next);
  const std::string damaged = fmt::format("train-{:05d}.h5", next + 1);
  atomic_write(hidden + kept, whole.files.at(kept));
  atomic_write(hidden + damaged, whole.files.at(damaged).substr(0, 5000));
  const auto identity = prepare_restart_test::identity(hidden + kept);
  prepare(settings, {});
  CHECK((prepare_restart_test::contents(settings.output) == whole.files));
  CHECK(prepare_restart_test::identity(settings.output + "/" + kept) == identity);
}

TEST_CASE("An interrupted preparation of something else is not continued", "[prepare_restart]") {
  const prepare_restart_test::Corpus corpus(1'200'000);
  config::Prepare settings = corpus.settings("out");
  CHECK_THROWS_AS(prepare(settings, prepare_restart_test::until(1'000'000)),
                  prepare_restart_test::Interrupted);
  config::Prepare other = settings;
  std::string changed = "the settings";
  SECTION("other settings") { other.add_eos = true; }
  SECTION("another tokenizer") { other.tokenizer.vocab_size = 600; }
  SECTION("a changed input") {
    changed = "the input";
    std::string lines = read_file(corpus.path("a.jsonl"));
    lines.replace(lines.find("text") + 8, 5, "Other");
    const struct stat before = [&] {
      struct stat status {};
      ::stat(corpus.path("a.jsonl").c_str(), &status);
      return status;
    }();
    atomic_write(corpus.path("a.jsonl"), lines);
    // Time and size tell nothing; what was read does.
    const struct timespec times[2] = {before.st_atim, before.st_mtim};
    REQUIRE(::utimensat(AT_FDCWD, corpus.path("a.jsonl").c_str(), times, 0) == 0);
  }
  SECTION("a journal without content") {
    atomic_write(settings.output + "/.prepare/journal.json", "{\"format_version\": 1}");
  }
  SECTION("a damaged journal") {
    const std::string journal = read_file(settings.output + "/.prepare/journal.json");
    atomic_write(settings.output + "/.prepare/journal.json", journal.substr(0, journal.size() / 2));
  }
  SECTION("a journal of the impossible") {
    Json journal = read_json(settings.output + "/.prepare/journal.json");
    journal["train"]["closed_shards"] = int64_t{1} << 60;
    atomic_write(settings.output + "/.prepare/journal.json", journal.dump());
  }
  CAPTURE(changed);
  std::set<std::string> stages;
  PrepareOptions options;
  options.progress = [&](const PrepareProgress& progress) { stages.insert(progress.stage); };
  prepare(other, options);
  CHECK(stages.count("training the tokenizer") == 1);
  const auto continued = prepare_restart_test::contents(other.output);
  other.output = corpus.path("afresh");
  prepare(other, {});
  CHECK((continued == prepare_restart_test::contents(other.output)));
}

TEST_CASE("A broken record stops the work, and correcting or skipping it does not lose what was done",
          "[prepare_restart]") {
  const prepare_restart_test::Reference& whole = prepare_restart_test::reference();
  const prepare_restart_test::Corpus corpus;
  config::Prepare settings = corpus.settings("out");
  settings.tokenizer_model = whole.report.tokenizer_model;
  const std::string good = read_file(corpus.path("c.jsonl"));
  atomic_write(corpus.path("c.jsonl"), good + "{\"text\": }\n");
  const std::string message = test::message_of<UserError>([&] { prepare(settings, {}); });
  CAPTURE(message);
  CHECK(test::contains(message, "c.jsonl:"));
  const auto finished = prepare_restart_test::finished_files(settings.output);
  REQUIRE(finished.size() > 5);
  const bool skips = GENERATE(false, true);
  if (skips) {
    settings.on_error = "skip";
  } else {
    atomic_write(corpus.path("c.jsonl"), good);
  }
  const PrepareReport report = prepare(settings, {});
  CHECK(report.skipped.total() == (skips ? 1 : 0));
  CHECK(report.train.tokens == whole.report.train.tokens);
  for (const auto& [name, identity] : finished) {
    CAPTURE(name);
    CHECK(prepare_restart_test::identity(settings.output + "/" + name) == identity);
  }
  settings.output = corpus.path("afresh");
  prepare(settings, {});
  CHECK((prepare_restart_test::contents(settings.output) ==
         prepare_restart_test::contents(corpus.path("out"))));
}

TEST_CASE("Without room for a shard preparation stops, and continues when there is some",
          "[prepare_restart]") {
  const prepare_restart_test::Reference& whole = prepare_restart_test::reference();
  config::Prepare settings = whole.corpus.settings("full");
  const pid_t child = ::fork();
  if (child == 0) {
    // A file of more than 90,000 bytes cannot be written: the tokenizer fits, a shard of 50,000 tokens does
    // not.
    const struct rlimit limit { 90'000, 90'000 };
    ::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 0;
    try {
      prepare(settings, {});
    } catch (const EnvironmentError&) {
      code = 3;
    } catch (...) {
      code = 4;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 3);
  CHECK(prepare_restart_test::contents(settings.output).empty());
  const auto finished = prepare_restart_test::finished_files(settings.output);
  REQUIRE(finished.count("tokenizer.model") == 1);
  prepare(settings, {});
  CHECK((prepare_restart_test::contents(settings.output) == whole.files));
  CHECK(prepare_restart_test::identity(settings.output + "/tokenizer.model") ==
        finished.at("tokenizer.model"));
}

TEST_CASE("One, two or three workers make the same files", "[prepare_restart]") {
  const prepare_restart_test::Reference& whole = prepare_restart_test::reference();
  for (const int64_t workers : {1, 3}) {
    config::Prepare settings = whole.corpus.settings("workers-" + std::to_string(workers));
    settings.workers = workers;
    prepare(settings, {});
    CHECK((prepare_restart_test::contents(settings.output) == whole.files));
  }
}

}  // namespace osdn::data
