// Writers that are killed or run out of space. The children are forked: they only run plain loops and file
// calls.
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <new>
#include <random>
#include <string>
#include <thread>

#include "tests/checkpoint/support.h"

namespace crash_test {

namespace ck = osdn::checkpoint;

/// One number that a child reports to its parent even when it is killed.
class SharedNumber {
 public:
  SharedNumber()
      : memory_(::mmap(nullptr, sizeof(std::atomic<int64_t>), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(memory_ != MAP_FAILED);
    number_ = new (memory_) std::atomic<int64_t>(0);
  }
  ~SharedNumber() { ::munmap(memory_, sizeof(std::atomic<int64_t>)); }
  SharedNumber(const SharedNumber&) = delete;
  SharedNumber& operator=(const SharedNumber&) = delete;
  std::atomic<int64_t>& operator*() { return *number_; }

 private:
  void* memory_;
  std::atomic<int64_t>* number_ = nullptr;
};

/// Runs `body` in a forked child that ends with its return value; 99 when it throws.
template <typename Body>
pid_t fork_child(Body body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int code = 99;
  try {
    code = body();
  } catch (const std::exception& failure) {
    (void)!::write(2, failure.what(), std::strlen(failure.what()));
  }
  ::_exit(code);
}

int wait_for(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

struct KillPlan {
  int64_t kills = 30;
  int64_t width = 2048;  // of the snapshot: 12 * 64 * width bytes a checkpoint
  int64_t longest_delay_us = 60000;
  bool asynchronous = false;
};

/// Restarts a child that resumes and saves every step, kills it at random moments, and checks after every
/// kill that the newest checkpoint is whole and at least as new as the last one that the child saw completed.
void kill_repeatedly(const KillPlan& plan) {
  const osdn::TemporaryDirectory directory;
  const std::string root = directory.path() + "/checkpoints";
  SharedNumber completed;
  std::mt19937 random(7);
  int64_t newest = 0;
  for (int64_t round = 0; round < plan.kills; ++round) {
    const pid_t child = fork_child([&] {
      const auto resumed = ck::load_newest(root);
      const int64_t first = resumed ? resumed->snapshot.step + 1 : 1;
      ck::Writer writer(root, checkpoint_test::options(2, 5, plan.asynchronous));
      for (int64_t step = first;; ++step) {
        writer.save(checkpoint_test::snapshot(step, plan.width));
        if (writer.newest_step() > 0) *completed = writer.newest_step();
      }
      return 0;
    });
    REQUIRE(child > 0);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % plan.longest_delay_us));
    // However slow the disk is, the last round gets far enough to show that saving goes on after all the
    // kills.
    const bool is_last = round + 1 == plan.kills;
    for (int64_t ms = 0; is_last && *completed <= newest && ms < 60'000; ++ms)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::kill(child, SIGKILL);
    const int status = wait_for(child);
    REQUIRE(WIFSIGNALED(status));
    CAPTURE(round);
    const auto loaded = ck::load_newest(root);
    const int64_t step = loaded ? loaded->snapshot.step : 0;
    CHECK(step >= *completed);
    CHECK(step >= newest);
    if (is_last) CHECK(step > newest);
    newest = step;
    if (!loaded) continue;
    CHECK(loaded->skipped.empty());
    CHECK(checkpoint_test::is_snapshot(loaded->snapshot, step, plan.width));
    for (const std::string& name : checkpoint_test::names_in(root)) {
      CHECK_FALSE(name.starts_with(".tmp-"));  // load_newest has removed what the kill left
      if (name.starts_with("step_")) CHECK(ck::verify(root + "/" + name).intact);
    }
  }
}

}  // namespace crash_test

TEST_CASE("kill -9 at any moment of saving leaves a complete newest checkpoint", "[crash]") {
  crash_test::kill_repeatedly({});
}

TEST_CASE("kill -9 during background saves leaves a complete newest checkpoint", "[crash]") {
  crash_test::kill_repeatedly({.asynchronous = true});
}

TEST_CASE("kill -9 while hundreds of megabytes are saved leaves a complete newest checkpoint",
          "[crash][slow]") {
  crash_test::kill_repeatedly({.kills = 30, .width = int64_t{1} << 18, .longest_delay_us = 2'000'000});
}

TEST_CASE("a write that fails half-way names path, size and reason and leaves the older checkpoint",
          "[crash]") {
  const osdn::TemporaryDirectory directory;
  const std::string root = directory.path();
  checkpoint_test::write_one(root, 1);
  const std::string report = root + "/report";
  const pid_t child = crash_test::fork_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {.rlim_cur = 100'000, .rlim_max = 100'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    osdn::checkpoint::Writer writer(root, checkpoint_test::options());
    try {
      writer.save(checkpoint_test::snapshot(2, 4096));
    } catch (const osdn::EnvironmentError& failure) {
      checkpoint_test::write_bytes(report, failure.what());
      return 3;
    }
    return 0;
  });
  const int status = crash_test::wait_for(child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 3);
  const std::string message = osdn::read_file(report);
  INFO(message);
  CHECK(checkpoint_test::contains(message, "checkpoint of step 2 was not written"));
  CHECK(checkpoint_test::contains(message, "model.safetensors: writing"));
  CHECK(checkpoint_test::contains(message, "File too large"));
  CHECK(checkpoint_test::names_in(root) == std::vector<std::string>{"latest", "report", "step_00000001"});
  CHECK(checkpoint_test::is_snapshot(osdn::checkpoint::load_newest(root)->snapshot, 1));
}

TEST_CASE("a full file system is refused with needed and available bytes", "[crash]") {
  const osdn::TemporaryDirectory directory;
  const std::string root = directory.path() + "/small";
  std::filesystem::create_directory(root);
  // Without the right to mount, the file system of the temporary directory stands in, asked for more than it
  // has.
  const bool mounted = ::mount("tmpfs", root.c_str(), "tmpfs", 0, "size=2m") == 0;
  {
    osdn::checkpoint::Writer writer(root, checkpoint_test::options());
    writer.save(checkpoint_test::snapshot(1, 1024));
    osdn::checkpoint::Snapshot large = checkpoint_test::snapshot(2, 2048);
    const uint64_t available = osdn::free_space_bytes(root);
    if (!mounted) {
      const auto width = static_cast<int64_t>(available / (12 * 64) + 4096);
      const at::Tensor huge =
          at::empty({64, width}, at::TensorOptions(at::kFloat));  // never touched, so never backed
      for (auto* tensors : {&large.weights, &large.exp_avg, &large.exp_avg_sq}) (*tensors)[0].value = huge;
    }
    const std::string message =
        checkpoint_test::message_of<osdn::EnvironmentError>([&] { writer.save(large); });
    INFO(message);
    CHECK(checkpoint_test::contains(message,
                                    root + ": not enough space for the checkpoint of step 2: needed "));
    CHECK(checkpoint_test::contains(message, "available "));
    CHECK(checkpoint_test::contains(message, "keep_last"));
    CHECK(checkpoint_test::names_in(root) == std::vector<std::string>{"latest", "step_00000001"});
    CHECK(checkpoint_test::is_snapshot(osdn::checkpoint::load_newest(root)->snapshot, 1, 1024));
  }
  if (mounted) ::umount(root.c_str());
}
