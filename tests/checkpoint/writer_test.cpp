#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "checkpoint/manifest.h"
#include "checkpoint/retention.h"
#include "tests/checkpoint/support.h"

namespace writer_test {

namespace ck = osdn::checkpoint;
using checkpoint_test::contains;
using checkpoint_test::message_of;
using checkpoint_test::names_in;
using checkpoint_test::options;
using checkpoint_test::snapshot;

using Names = std::vector<std::string>;

/// For its lifetime no file of this process grows beyond the limit; a write that would fails with EFBIG.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t size_bytes) {
    previous_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit limit = {.rlim_cur = size_bytes, .rlim_max = previous_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &previous_);
    ::signal(SIGXFSZ, previous_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit previous_ = {};
  void (*previous_handler_)(int) = nullptr;
};

}  // namespace writer_test

TEST_CASE("the newest keep_last stay whole, multiples of keep_every_steps as weights", "[writer]") {
  const osdn::TemporaryDirectory directory;
  const std::string root = directory.path() + "/new/checkpoints";
  writer_test::ck::Writer writer(root, writer_test::options(2, 20));
  for (int64_t step = 5; step <= 50; step += 5) writer.save(writer_test::snapshot(step));
  CHECK(writer.newest_step() == 50);
  CHECK(writer_test::names_in(root) ==
        writer_test::Names{"latest", "step_00000020", "step_00000040", "step_00000045", "step_00000050"});
  for (const char* name : {"step_00000020", "step_00000040"}) {
    CHECK(writer_test::names_in(root + "/" + name) ==
          writer_test::Names{"manifest.json", "model.safetensors", "state.json"});
    const auto verdict = osdn::checkpoint::verify(root + "/" + name);
    CHECK(verdict.intact);
    CHECK(verdict.weights_only);
  }
  const auto weights = osdn::checkpoint::load(root + "/step_00000020");
  CHECK(weights.weights_only);
  CHECK(checkpoint_test::equal(weights.snapshot.weights, writer_test::snapshot(20).weights));
  CHECK(weights.snapshot.exp_avg.empty());
  CHECK(osdn::checkpoint::load_newest(root)->snapshot.step == 50);
}

TEST_CASE("keep_last 1 keeps the newest alone and 0 keeps all", "[writer]") {
  const osdn::TemporaryDirectory directory;
  writer_test::ck::Writer one(directory.path() + "/one", writer_test::options(1));
  writer_test::ck::Writer all(directory.path() + "/all", writer_test::options(0));
  for (int64_t step = 1; step <= 3; ++step) {
    one.save(writer_test::snapshot(step));
    all.save(writer_test::snapshot(step));
  }
  CHECK(writer_test::names_in(directory.path() + "/one") == writer_test::Names{"latest", "step_00000003"});
  CHECK(writer_test::names_in(directory.path() + "/all") ==
        writer_test::Names{"latest", "step_00000001", "step_00000002", "step_00000003"});
}

TEST_CASE("a relative path and foreign files do not disturb the first save", "[writer]") {
  const osdn::TemporaryDirectory directory;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  {
    std::filesystem::create_directory("checkpoints");
    checkpoint_test::write_bytes("checkpoints/notes.txt", "mine");
    std::filesystem::create_directory("checkpoints/step_archive");
    writer_test::ck::Writer writer("checkpoints", writer_test::options(1));
    for (int64_t step = 1; step <= 2; ++step) writer.save(writer_test::snapshot(step));
    writer_test::ck::Writer fresh("other", writer_test::options(1));
    fresh.save(writer_test::snapshot(9));
  }
  std::filesystem::current_path(before);
  CHECK(writer_test::names_in(directory.path() + "/checkpoints") ==
        writer_test::Names{"latest", "notes.txt", "step_00000002", "step_archive"});
  CHECK(osdn::checkpoint::load_newest(directory.path() + "/other")->snapshot.step == 9);
}

TEST_CASE("a damaged checkpoint is not counted as kept", "[writer]") {
  const osdn::TemporaryDirectory directory;
  const std::string root = directory.path();
  checkpoint_test::write_one(root, 10);
  const std::string damaged = checkpoint_test::write_one(root, 20) + "/model.safetensors";
  std::string bytes = osdn::read_file(damaged);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // the size stays right: only the digest tells
  checkpoint_test::write_bytes(damaged, bytes);
  writer_test::ck::Writer writer(root, writer_test::options(2));
  writer.save(writer_test::snapshot(15));
  CHECK(osdn::checkpoint::verify(root + "/step_00000010").intact);
  CHECK(osdn::checkpoint::load_newest(root)->snapshot.step == 15);
}

TEST_CASE("saving a step again replaces what has its name", "[writer]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = checkpoint_test::write_one(directory.path(), 4);
  std::filesystem::remove(path + "/state.json");
  writer_test::ck::Writer writer(directory.path(), writer_test::options(2));
  writer.save(writer_test::snapshot(4));
  CHECK(osdn::checkpoint::verify(path).intact);
  writer.save(writer_test::snapshot(4));
  CHECK(osdn::checkpoint::verify(path).intact);
  CHECK(writer_test::names_in(directory.path()) == writer_test::Names{"latest", "step_00000004"});
}

TEST_CASE("a reduction to weights that was cut short stays intact and is finished later", "[writer]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = checkpoint_test::write_one(directory.path(), 10);
  const std::string moments = path + "/optimizer-0-of-1.safetensors";
  const std::string bytes = osdn::read_file(moments);
  osdn::checkpoint::reduce_to_weights(path);
  checkpoint_test::write_bytes(moments,
                               bytes);  // as after a kill between the manifest's rename and the removal
  checkpoint_test::write_bytes(path + "/manifest.json.tmp-77", "half");
  CHECK(osdn::checkpoint::verify(path).intact);
  CHECK(osdn::checkpoint::load(path).weights_only);
  writer_test::ck::Writer writer(directory.path(), writer_test::options(1, 10));
  writer.save(writer_test::snapshot(20));
  CHECK_FALSE(std::filesystem::exists(moments));
  CHECK(osdn::checkpoint::verify(path).intact);
}

TEST_CASE("background saves complete in order and the snapshot is not copied", "[writer]") {
  const osdn::TemporaryDirectory directory;
  writer_test::ck::Writer writer(directory.path(), writer_test::options(3, 0, true));
  for (int64_t step = 1; step <= 5; ++step) writer.save(writer_test::snapshot(step));
  writer.wait();
  CHECK(writer.newest_step() == 5);
  CHECK(writer_test::names_in(directory.path()) ==
        writer_test::Names{"latest", "step_00000003", "step_00000004", "step_00000005"});
  CHECK(checkpoint_test::is_snapshot(osdn::checkpoint::load_newest(directory.path())->snapshot, 5));
}

TEST_CASE("an error of the background writer surfaces once, naming step and path", "[writer]") {
  const osdn::TemporaryDirectory directory;
  const std::string root = directory.path() + "/checkpoints";
  writer_test::ck::Writer writer(root, writer_test::options(2, 0, true));
  writer.save(writer_test::snapshot(1));
  writer.wait();
  writer.check();
  {
    // Files may not grow beyond this: it cannot know before it tries.
    const writer_test::FileSizeLimit limit(100'000);
    writer.save(writer_test::snapshot(2, 4096));
    const std::string message = writer_test::message_of<osdn::EnvironmentError>([&] { writer.wait(); });
    CHECK(writer_test::contains(message, "checkpoint of step 2 was not written"));
    CHECK(writer_test::contains(message, root));
    CHECK(writer_test::contains(message, "File too large"));
    writer.save(writer_test::snapshot(3, 4096));
    std::string checked = "nothing was thrown";
    for (int i = 0; i < 5000 && !writer_test::contains(checked, "step 3 was not written"); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      checked = writer_test::message_of<osdn::EnvironmentError>([&] { writer.check(); });
    }
    CHECK(writer_test::contains(checked, "step 3 was not written"));
  }
  writer.save(writer_test::snapshot(4));
  writer.wait();
  CHECK(osdn::checkpoint::load_newest(root)->snapshot.step == 4);
  CHECK(writer_test::names_in(root) == writer_test::Names{"latest", "step_00000001", "step_00000004"});
}

TEST_CASE("a directory that vanished or was replaced is not written to", "[writer]") {
  const osdn::TemporaryDirectory directory;
  const std::string root = directory.path() + "/checkpoints";
  for (const bool asynchronous : {false, true}) {
    writer_test::ck::Writer writer(root, writer_test::options(2, 0, asynchronous));
    writer.save(writer_test::snapshot(1));
    writer.wait();
    const std::string moved = directory.path() + "/moved" + std::to_string(asynchronous ? 1 : 0);
    std::filesystem::rename(root, moved);
    const auto save = [&] { writer.save(writer_test::snapshot(2)); };
    CHECK(writer_test::contains(writer_test::message_of<osdn::EnvironmentError>(save), root + ": "));
    CHECK(writer_test::contains(writer_test::message_of<osdn::EnvironmentError>(save), "vanished"));
    std::filesystem::create_directory(root);
    CHECK(
        writer_test::contains(writer_test::message_of<osdn::EnvironmentError>(save), "is another directory"));
    CHECK(std::filesystem::is_empty(root));
    CHECK(osdn::checkpoint::load_newest(moved)->snapshot.step == 1);
    // Back in its place it is the same one.
    std::filesystem::remove(root);
    std::filesystem::rename(moved, root);
    save();
    writer.wait();
    CHECK(osdn::checkpoint::load_newest(root)->snapshot.step == 2);
    std::filesystem::remove_all(root);
  }
}

TEST_CASE("a directory that cannot be written to is named before anything is saved", "[writer]") {
  const osdn::TemporaryDirectory directory;
  checkpoint_test::write_bytes(directory.path() + "/checkpoints", "a file");
  const std::string message = writer_test::message_of<osdn::EnvironmentError>(
      [&] { writer_test::ck::Writer(directory.path() + "/checkpoints", writer_test::options()); });
  CHECK(writer_test::contains(message, directory.path() + "/checkpoints"));
  CHECK(writer_test::contains(message, "cannot create the directory"));
}

TEST_CASE("what a kill kept a process from is done when its checkpoint is adopted", "[writer]") {
  const osdn::TemporaryDirectory directory;
  const std::string root = directory.path();
  for (int64_t step = 1; step <= 4; ++step) checkpoint_test::write_one(root, step);
  checkpoint_test::write_bytes(root + "/latest", "step_00000001\n");
  writer_test::ck::Writer writer(root, writer_test::options(1, 2));
  writer.adopt("step_00000004");
  CHECK(osdn::read_file(root + "/latest") == "step_00000004\n");
  CHECK(writer_test::names_in(root) == writer_test::Names{"latest", "step_00000002", "step_00000004"});
  CHECK(osdn::checkpoint::verify(root + "/step_00000002").weights_only);
  CHECK(writer.newest_step() == -1);
}

TEST_CASE("checkpoint_bytes is at least what a checkpoint takes", "[writer]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = checkpoint_test::write_one(directory.path(), 1);
  uint64_t total = 0;
  for (const std::string& name : writer_test::names_in(path))
    total += std::filesystem::file_size(path + "/" + name);
  const uint64_t estimate = osdn::checkpoint::checkpoint_bytes(64 * 16 + 16);
  CHECK(total <= estimate);
  CHECK(estimate <= total + (2 << 20));
}
