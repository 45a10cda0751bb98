// scripts/bundle.sh: the folder it makes runs from elsewhere, with an empty environment.
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/fs.h"
#include "base/json.h"
#include "tests/integration/run_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace osdn::test {
namespace bundle_test_detail {

namespace fs = std::filesystem;

/// A bundle of this build, made once and then moved: no path of its making is left.
inline const std::string& moved_bundle() {
  static const TemporaryDirectory folder;
  static const std::string moved = folder.path() + "/a place/elsewhere";
  static const bool made = [] {
    const std::string build = fs::path(OSDN_BINARY).parent_path().parent_path().string();
    const std::string first = folder.path() + "/first";
    const ProcessResult result =
        Process({std::string(OSDN_SOURCE_DIR) + "/scripts/bundle.sh", "--build", build, first}, folder.path())
            .wait();
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    fs::create_directories(fs::path(moved).parent_path());
    fs::rename(first, moved);
    return true;
  }();
  static_cast<void>(made);
  return moved;
}

/// `env -i` with these settings, then the bundle's program in `directory`.
inline std::vector<std::string> bare(std::vector<std::string> settings,
                                     const std::vector<std::string>& arguments) {
  settings.insert(settings.begin(), {"/usr/bin/env", "-i"});
  settings.push_back(moved_bundle() + "/bin/osdn");
  settings.insert(settings.end(), arguments.begin(), arguments.end());
  return settings;
}

inline ProcessResult run_bare(const std::string& directory, const std::string& libtorch,
                              const std::vector<std::string>& arguments) {
  return Process(bare({"PATH=/usr/bin:/bin", "LIBTORCH_ROOT=" + libtorch}, arguments), directory).wait();
}

/// A folder that looks like LibTorch of `version`, its libraries linked to the real ones but for those whose
/// name has `without` in it.
inline void imitate_libtorch(const std::string& folder, const std::string& minor,
                             const std::string& without) {
  fs::create_directories(folder + "/lib");
  fs::create_directories(folder + "/include/torch/headeronly");
  atomic_write(folder + "/include/torch/headeronly/version.h",
               "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR " + minor +
                   "\n#define TORCH_VERSION_PATCH 0\n");
  for (const auto& entry : fs::directory_iterator(std::string(OSDN_LIBTORCH) + "/lib")) {
    const std::string name = entry.path().filename().string();
    if (without.empty() || name.find(without) == std::string::npos)
      fs::create_symlink(entry.path(), folder + "/lib/" + name);
  }
}

inline uint64_t size_of_folder(const std::string& folder) {
  uint64_t size_bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    CHECK(!entry.is_symlink());
    if (entry.is_regular_file()) size_bytes += entry.file_size();
  }
  return size_bytes;
}

TEST_CASE("a bundle prepares and trains from another place with an empty environment", "[bundle][slow]") {
  const std::string& bundle = moved_bundle();
  CHECK(size_of_folder(bundle) <= 60'000'000);
  const TemporaryDirectory work;
  const std::string torch = OSDN_LIBTORCH;
  const auto run = [&](const std::vector<std::string>& arguments) {
    const ProcessResult result = run_bare(work.path(), torch, arguments);
    INFO(result.err);
    CHECK(result.exit_code == 0);
    return result;
  };
  check_mentions(run({"version"}).out, {"osdn ", "LibTorch 2.11."});
  CHECK(run({"config", "check", bundle + "/configs/quickstart.yaml"}).out.find(": valid") !=
        std::string::npos);
  run({"prepare", "--builtin", "--megabytes", "1", "--vocab-size", "512", "--validation-fraction", "0.05",
       "--output", "shards"});
  atomic_write(work.path() + "/small.yaml", small_run_yaml());
  run({"train", "small.yaml", "--set", "train.steps=3"});
  CHECK(fs::exists(work.path() + "/runs/small/checkpoints/step_00000003/manifest.json"));
  run({"report", "runs/small", "--output", "report.html"});
}

TEST_CASE("a bundle with the Parquet reader finds it in its own folder", "[bundle][slow]") {
  const fs::path build = fs::path(OSDN_BINARY).parent_path().parent_path();
  if (!fs::exists(build / "lib/osdn_parquet")) return;  // built without Arrow
  const TemporaryDirectory work;
  const ProcessResult made = Process({std::string(OSDN_SOURCE_DIR) + "/scripts/bundle.sh", "--with-parquet",
                                      "--build", build.string(), work.path() + "/bundle"},
                                     work.path())
                                 .wait();
  INFO(made.err);
  REQUIRE(made.exit_code == 0);
  atomic_write(work.path() + "/text.parquet", "PAR1 and then nothing that is Parquet PAR1");
  const ProcessResult result =
      Process({"/usr/bin/env", "-i", "PATH=/usr/bin:/bin", std::string("LIBTORCH_ROOT=") + OSDN_LIBTORCH,
               work.path() + "/bundle/bin/osdn", "prepare", "--input", "text.parquet", "--output", "shards"},
              work.path())
          .wait();
  // The reader was found and started, and it is the reader that refuses the file.
  INFO(result.err);
  CHECK(result.exit_code == 4);
  check_mentions(result.err, {"text.parquet"});
}

TEST_CASE("exit codes and signals pass through a bundle's launcher", "[bundle][slow]") {
  const RunFolder folder;
  const std::string torch = OSDN_LIBTORCH;
  CHECK(run_bare(folder.path(), torch, {"frobnicate"}).exit_code == 2);
  CHECK(run_bare(folder.path(), torch, {"config", "check", "absent.yaml"}).exit_code == 2);
  Process training(bare({"PATH=/usr/bin:/bin", "LIBTORCH_ROOT=" + torch},
                        {"train", "small.yaml", "--set", "train.steps=100000"}),
                   folder.path());
  for (int i = 0; i < 1200 && !fs::exists(folder.run() + "/checkpoints/latest"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  training.signal(SIGTERM);
  const ProcessResult ended = training.wait();
  INFO(ended.err);
  CHECK(ended.exit_code == 143);
}

TEST_CASE("a bundle says what is wrong with the LibTorch it finds, or that there is none", "[bundle][slow]") {
  const TemporaryDirectory work;
  // A python3 without torch, whatever the machine's has.
  fs::create_directories(work.path() + "/bin");
  atomic_write(work.path() + "/bin/python3", "#!/bin/sh\n");
  fs::permissions(work.path() + "/bin/python3", fs::perms::owner_all);
  const std::string path = "PATH=" + work.path() + "/bin:/usr/bin:/bin";
  const auto refused = [&](const std::vector<std::string>& settings, const std::vector<std::string>& parts) {
    const ProcessResult result = Process(bare(settings, {"version"}), work.path()).wait();
    CHECK(result.exit_code == 3);
    CHECK(result.out.empty());
    check_mentions(result.err, parts);
  };
  refused({path}, {"error: LibTorch 2.11 not found", "pip install torch==2.11.0", "LIBTORCH_ROOT"});
  refused({path, "LIBTORCH_ROOT=/nowhere"}, {"error: LIBTORCH_ROOT=/nowhere: ", "lib/libtorch_cpu.so"});
  imitate_libtorch(work.path() + "/older", "9", "");
  refused({path, "LIBTORCH_ROOT=" + work.path() + "/older"}, {"version '2.9.0", "2.11 is needed"});
  imitate_libtorch(work.path() + "/partial", "11", "libc10.so");
  refused({path, "LIBTORCH_ROOT=" + work.path() + "/partial"}, {"lacks libraries: ", "libc10.so"});
  const bool uses_cuda =
      read_file(moved_bundle() + "/libexec/osdn").find("libtorch_cuda.so") != std::string::npos;
  imitate_libtorch(work.path() + "/cpu_only", "11", "_cuda");
  if (uses_cuda) refused({path, "LIBTORCH_ROOT=" + work.path() + "/cpu_only"}, {"for the CPU only", "--cpu"});

  // Beside the bundle, as in a working copy, it is found without any setting.
  const std::string beside = fs::path(moved_bundle()).parent_path().string() + "/.deps";
  fs::create_directories(beside);
  fs::create_directory_symlink(OSDN_LIBTORCH, beside + "/torch");
  const ProcessResult found = Process(bare({path}, {"version"}), work.path()).wait();
  INFO(found.err);
  CHECK(found.exit_code == 0);
  fs::remove_all(beside);
}

TEST_CASE("a bundle is replaced by the next, byte for byte the same; another folder is left alone",
          "[bundle][slow]") {
  const TemporaryDirectory work;
  const std::string build = fs::path(OSDN_BINARY).parent_path().parent_path().string();
  const std::string script = std::string(OSDN_SOURCE_DIR) + "/scripts/bundle.sh";
  const std::string folder = work.path() + "/bundle";
  REQUIRE(Process({script, "--build", build, folder}, work.path()).wait().exit_code == 0);
  const std::string sums = read_file(folder + "/SHA256SUMS");
  CHECK(Json::parse(read_file(folder + "/bundle.json")).contains("commit"));
  CHECK(Process({"/bin/sh", "-c", "cd bundle && sha256sum --check --quiet SHA256SUMS"}, work.path())
            .wait()
            .exit_code == 0);
  REQUIRE(Process({script, "--build", build, folder}, work.path()).wait().exit_code == 0);
  const bool same = read_file(folder + "/SHA256SUMS") == sums;
  CHECK(same);

  fs::create_directories(work.path() + "/mine");
  atomic_write(work.path() + "/mine/thesis.txt", "text");
  const ProcessResult refused =
      Process({script, "--build", build, work.path() + "/mine"}, work.path()).wait();
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("is no bundle") != std::string::npos);
  CHECK(read_file(work.path() + "/mine/thesis.txt") == "text");
}

}  // namespace bundle_test_detail
}  // namespace osdn::test
