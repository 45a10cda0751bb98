// What the writer's thread does, without tensors: these cases also run under ThreadSanitizer.
#include "checkpoint/publisher.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "checkpoint/layout.h"
#include "checkpoint/verify.h"
#include "tests/support/catch.h"

namespace publisher_test {

namespace ck = osdn::checkpoint;

ck::PendingFile text_file(const std::string& name, const std::string& text) {
  return {.name = name, .size_bytes = text.size(), .write = [text](const std::string& path) {
            osdn::File file = osdn::File::create(path);
            file.write(text);
            file.sync();
            return osdn::digest(text);
          }};
}

ck::PendingCheckpoint pending(int64_t step) {
  ck::PendingCheckpoint made{.step = step, .num_optimizer_shards = 1, .files = {}};
  made.files.push_back(text_file(ck::kModelFile, std::string(10000, 'w') + std::to_string(step)));
  made.files.push_back(text_file(ck::kStateFile, "{\"step\": " + std::to_string(step) + "}"));
  made.files.push_back(text_file(ck::optimizer_name(0, 1), std::string(20000, 'm')));
  return made;
}

osdn::config::Checkpoint options(int64_t keep_last) {
  osdn::config::Checkpoint made;
  made.keep_last = keep_last;
  made.keep_every_steps = 0;
  made.asynchronous = true;
  return made;
}

}  // namespace publisher_test

TEST_CASE("files are published in the background while others ask how far it is", "[publisher]") {
  const osdn::TemporaryDirectory directory;
  std::atomic<bool> stop{false};
  {
    osdn::checkpoint::Publisher publisher(directory.path(), publisher_test::options(2));
    std::thread observer([&] {
      for (int64_t seen = -1; !stop;) {
        const int64_t newest = publisher.newest_step();
        if (newest < seen) std::abort();
        seen = newest;
      }
    });
    for (int64_t step = 1; step <= 20; ++step) {
      publisher.save(publisher_test::pending(step));
      publisher.check();
    }
    publisher.wait();
    CHECK(publisher.newest_step() == 20);
    stop = true;
    observer.join();
  }
  std::vector<std::string> names = osdn::checkpoint::list_names(directory.path());
  CHECK(names == std::vector<std::string>{"latest", "step_00000019", "step_00000020"});
  CHECK(osdn::checkpoint::verify(directory.path() + "/step_00000020").intact);
}

TEST_CASE("a file that fails in the background is told once and its directory is gone", "[publisher]") {
  const osdn::TemporaryDirectory directory;
  osdn::checkpoint::Publisher publisher(directory.path(), publisher_test::options(2));
  osdn::checkpoint::PendingCheckpoint broken = publisher_test::pending(1);
  broken.files[2].write = [](const std::string& path) -> osdn::Digest128 {
    throw osdn::EnvironmentError("{}: the medium is gone", path);
  };
  publisher.save(std::move(broken));
  std::string message;
  try {
    publisher.save(publisher_test::pending(2));
  } catch (const osdn::EnvironmentError& failure) {
    message = failure.what();
  }
  CHECK(message.find("checkpoint of step 1 was not written") == 0);
  CHECK(message.find("optimizer-0-of-1.safetensors: the medium is gone") != std::string::npos);
  CHECK(std::filesystem::is_empty(directory.path()));
  publisher.save(publisher_test::pending(3));
  publisher.wait();
  CHECK(publisher.newest_step() == 3);
}

TEST_CASE("a publisher that goes ends its write first", "[publisher]") {
  const osdn::TemporaryDirectory directory;
  for (int64_t step = 1; step <= 5; ++step)
    osdn::checkpoint::Publisher(directory.path(), publisher_test::options(0))
        .save(publisher_test::pending(step));
  for (int64_t step = 1; step <= 5; ++step)
    CHECK(osdn::checkpoint::verify(directory.path() + "/" + osdn::checkpoint::step_name(step)).intact);
}
