// Several ranks write one checkpoint: each a Publisher in a thread of its own, their board in memory.
#include "checkpoint/team.h"

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "checkpoint/manifest.h"
#include "checkpoint/publisher.h"
#include "tests/support/catch.h"

namespace team_test {

namespace ck = osdn::checkpoint;

class MemoryBoard : public osdn::dist::Board {
 public:
  void post(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
  }
  std::optional<std::string> read(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

ck::PendingFile file(const std::string& name, const std::string& content) {
  return {.name = name, .size_bytes = content.size(), .write = [content](const std::string& path) {
            osdn::File created = osdn::File::create(path);
            created.write(content);
            created.sync();
            return osdn::digest(content);
          }};
}

ck::PendingCheckpoint share(int64_t step, int64_t rank, int64_t world_size) {
  ck::PendingCheckpoint pending{.step = step, .num_optimizer_shards = world_size, .files = {}};
  if (rank == 0) {
    pending.files.push_back(file("model.safetensors", "weights"));
    pending.files.push_back(file("state.json", "{}\n"));
  }
  const std::string name = "optimizer-" + std::to_string(rank) + "-of-" + std::to_string(world_size);
  pending.files.push_back(file(name + ".safetensors", "moments of rank " + std::to_string(rank)));
  return pending;
}

struct Bench {
  osdn::TemporaryDirectory folder;
  std::shared_ptr<MemoryBoard> board = std::make_shared<MemoryBoard>();
  std::string checkpoints = folder.path() + "/checkpoints";

  std::unique_ptr<ck::Publisher> publisher(int64_t rank, int64_t world_size, bool asynchronous,
                                           std::chrono::seconds timeout = std::chrono::seconds(20)) const {
    osdn::config::Checkpoint options;
    options.asynchronous = asynchronous;
    return std::make_unique<ck::Publisher>(
        checkpoints, options,
        ck::Team{.rank = rank, .world_size = world_size, .board = board, .timeout = timeout});
  }
};

std::string failure_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const osdn::EnvironmentError& failure) {
    return failure.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace team_test

TEST_CASE("a checkpoint is complete once the files of all ranks are there, and names them all", "[team]") {
  namespace t = team_test;
  for (const bool asynchronous : {false, true}) {
    const t::Bench bench;
    constexpr int64_t kRanks = 3;
    std::vector<std::unique_ptr<t::ck::Publisher>> publishers;
    for (int64_t rank = 0; rank < kRanks; ++rank)
      publishers.push_back(bench.publisher(rank, kRanks, asynchronous));
    for (const int64_t step : {4, 8}) {
      std::vector<std::thread> ranks;
      for (int64_t rank = 0; rank < kRanks; ++rank)
        ranks.emplace_back([&, rank] {
          // The last one is late: nothing may be complete without it.
          if (rank == kRanks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
          publishers[static_cast<size_t>(rank)]->save(t::share(step, rank, kRanks));
          publishers[static_cast<size_t>(rank)]->wait();
        });
      for (std::thread& rank : ranks) rank.join();
      const std::string directory = bench.checkpoints + "/step_0000000" + std::to_string(step);
      const t::ck::Manifest manifest = t::ck::read_manifest(directory);
      CHECK(manifest.num_optimizer_shards == kRanks);
      std::vector<std::string> names;
      for (const t::ck::ManifestFile& file : manifest.files) names.push_back(file.name);
      CHECK(names == std::vector<std::string>{"model.safetensors", "state.json",
                                              "optimizer-0-of-3.safetensors", "optimizer-1-of-3.safetensors",
                                              "optimizer-2-of-3.safetensors"});
      CHECK_NOTHROW(t::ck::check_listing(directory, manifest));
      CHECK(publishers[0]->newest_step() == step);
    }
  }
}

TEST_CASE("a rank that cannot write its share leaves no checkpoint, and rank 0 says which and why",
          "[team]") {
  namespace t = team_test;
  const t::Bench bench;
  const auto first = bench.publisher(0, 2, false);
  const auto second = bench.publisher(1, 2, false);
  std::string told_to_second;
  std::thread other([&] {
    t::ck::PendingCheckpoint pending = t::share(4, 1, 2);
    pending.files[0].write = [](const std::string& path) -> osdn::Digest128 {
      throw osdn::EnvironmentError("{}: No space left on device", path);
    };
    told_to_second = t::failure_of([&] { second->save(pending); });
  });
  const std::string told = t::failure_of([&] { first->save(t::share(4, 0, 2)); });
  other.join();
  INFO(told << "\n" << told_to_second);
  CHECK(t::contains(told, "checkpoint of step 4 was not written"));
  CHECK(t::contains(told, "rank 1: "));
  CHECK(t::contains(told, "No space left on device"));
  CHECK(t::contains(told_to_second, "No space left on device"));
  CHECK(std::filesystem::is_empty(bench.checkpoints));
}

TEST_CASE("a rank that does not answer is named after the time-out, and nothing is left of the checkpoint",
          "[team]") {
  namespace t = team_test;
  const t::Bench bench;
  const auto first = bench.publisher(0, 2, false, std::chrono::seconds(1));
  const std::string told = t::failure_of([&] { first->save(t::share(4, 0, 2)); });
  INFO(told);
  CHECK(t::contains(told, "rank 1 has not done its share within 1 s"));
  CHECK(std::filesystem::is_empty(bench.checkpoints));
}

TEST_CASE("a publisher that goes does not wait for ranks that may be gone", "[team]") {
  namespace t = team_test;
  const t::Bench bench;
  auto first = bench.publisher(0, 2, true, std::chrono::seconds(600));
  first->save(t::share(4, 0, 2));
  const auto start = std::chrono::steady_clock::now();
  first.reset();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  CHECK(std::filesystem::is_empty(bench.checkpoints));
}
