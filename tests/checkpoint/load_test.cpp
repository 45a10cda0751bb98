#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>

#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/optimizer_shard.h"
#include "tests/checkpoint/support.h"

namespace load_test {

namespace fs = std::filesystem;
using checkpoint_test::contains;
using checkpoint_test::message_of;

void copy(const std::string& from, const std::string& to) { fs::copy(from, to, fs::copy_options::recursive); }

/// A checkpoint of `world_size` ranks made by hand; `gap` drops the last element of every rank's slices.
void write_sharded(const std::string& directory, int64_t step, int64_t world_size, bool gap) {
  namespace ck = osdn::checkpoint;
  const ck::Snapshot snapshot = checkpoint_test::snapshot(step);
  fs::create_directories(directory);
  ck::Manifest manifest;
  manifest.step = step;
  manifest.num_optimizer_shards = world_size;
  const auto add = [&](const std::string& name) {
    const std::string path = directory + "/" + name;
    manifest.files.push_back({name, fs::file_size(path), osdn::digest_file(path).hex()});
  };
  ck::TensorList weights;
  for (const auto& weight : snapshot.weights) weights.emplace_back(weight.name, weight.value);
  ck::write_safetensors(directory + "/" + ck::kModelFile, weights, {});
  add(ck::kModelFile);
  checkpoint_test::write_bytes(directory + "/" + ck::kStateFile, snapshot.state.dump());
  add(ck::kStateFile);
  for (int64_t rank = 0; rank < world_size; ++rank) {
    std::vector<ck::MomentSlice> slices;
    for (size_t i = 0; i < snapshot.weights.size(); ++i) {
      const int64_t n = snapshot.weights[i].value.numel();
      const int64_t begin = n * rank / world_size;
      const int64_t end = n * (rank + 1) / world_size - (gap ? 1 : 0);
      slices.push_back({.name = snapshot.weights[i].name,
                        .begin = begin,
                        .end = end,
                        .exp_avg = snapshot.exp_avg[i].value.view(-1).narrow(0, begin, end - begin),
                        .exp_avg_sq = snapshot.exp_avg_sq[i].value.view(-1).narrow(0, begin, end - begin)});
    }
    const std::string name = ck::optimizer_name(rank, world_size);
    ck::write_optimizer_shard(directory + "/" + name, {.step = step, .rank = rank, .world_size = world_size},
                              slices);
    add(name);
  }
  checkpoint_test::write_bytes(directory + "/" + ck::kManifestFile, ck::to_text(manifest));
}

/// Every byte of manifest and state; of the tensors' files the first bytes with the header's length, the
/// header's ends, the first and last byte of every tensor, and a sample.
std::vector<size_t> positions_to_flip(const std::string& name, const std::string& content) {
  std::set<size_t> positions;
  const bool small = name.ends_with(".json");
  for (size_t i = 0; i < content.size(); i += small ? 1 : content.size() / 199 + 1) positions.insert(i);
  if (!small) {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, content.data(), sizeof header_bytes);
    const size_t data = sizeof header_bytes + header_bytes;
    for (size_t i = 0; i < sizeof header_bytes + 2; ++i) positions.insert(i);
    positions.insert({data - 2, data - 1, content.size() - 1});
    const osdn::Json header = osdn::Json::parse(content.substr(sizeof header_bytes, header_bytes));
    for (const auto& [key, entry] : header.items()) {
      if (key == "__metadata__") continue;
      positions.insert(data + entry["data_offsets"][0].get<size_t>());
      positions.insert(data + entry["data_offsets"][1].get<size_t>() - 1);
    }
  }
  return {positions.begin(), positions.end()};
}

}  // namespace load_test

TEST_CASE("a checkpoint loads with the bits, shapes and state that were saved", "[load]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = checkpoint_test::write_one(directory.path(), 512);
  CHECK(checkpoint_test::names_in(path) == std::vector<std::string>{"manifest.json", "model.safetensors",
                                                                    "optimizer-0-of-1.safetensors",
                                                                    "state.json"});
  const auto loaded = osdn::checkpoint::load(path);
  CHECK_FALSE(loaded.weights_only);
  CHECK(checkpoint_test::is_snapshot(loaded.snapshot, 512));
  CHECK(loaded.snapshot.state["learning_rate"].get<double>() == 0.1 / 3);
  CHECK(osdn::read_file(directory.path() + "/latest") == "step_00000512\n");
  const auto verdict = osdn::checkpoint::verify(path + "/");
  CHECK(verdict.intact);
  CHECK(verdict.step == 512);
}

TEST_CASE("a flipped byte anywhere is found, the file named, and the checkpoint before it used", "[load]") {
  const osdn::TemporaryDirectory directory;
  checkpoint_test::write_one(directory.path(), 1);
  const std::string path = checkpoint_test::write_one(directory.path(), 2);
  for (const std::string& name : checkpoint_test::names_in(path)) {
    const std::string whole = osdn::read_file(path + "/" + name);
    for (const size_t position : load_test::positions_to_flip(name, whole)) {
      std::string altered = whole;
      // One bit, then all of them.
      const int mask = position % 2 == 0 ? 1 << (position / 2 % 8) : 0xff;
      altered[position] = static_cast<char>(altered[position] ^ mask);
      checkpoint_test::write_bytes(path + "/" + name, altered);
      CAPTURE(name, position);
      const auto verdict = osdn::checkpoint::verify(path);
      CHECK_FALSE(verdict.intact);
      CHECK(load_test::contains(verdict.problem, name));
      const std::string message =
          load_test::message_of<osdn::DataError>([&] { osdn::checkpoint::load(path); });
      CHECK(load_test::contains(message, name));
      // Deciding is quick, telling takes a line: not all of them.
      if (position % 16 == 0)
        CHECK(checkpoint_test::is_snapshot(osdn::checkpoint::load_newest(directory.path())->snapshot, 1));
    }
    checkpoint_test::write_bytes(path + "/" + name, whole);
  }
  CHECK(osdn::checkpoint::load_newest(directory.path())->snapshot.step == 2);
}

TEST_CASE("missing, extra, empty, cut and lengthened files are named", "[load]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = checkpoint_test::write_one(directory.path(), 1);
  for (const std::string& name : checkpoint_test::names_in(path)) {
    INFO(name);
    const std::string whole = osdn::read_file(path + "/" + name);
    std::filesystem::remove(path + "/" + name);
    CHECK(load_test::contains(osdn::checkpoint::verify(path).problem, name + ": missing"));
    for (const std::string& content : {std::string(), whole.substr(0, whole.size() - 1), whole + "\n"}) {
      checkpoint_test::write_bytes(path + "/" + name, content);
      CHECK(load_test::contains(osdn::checkpoint::verify(path).problem, name));
      CHECK_THROWS_AS(osdn::checkpoint::load(path), osdn::DataError);
    }
    checkpoint_test::write_bytes(path + "/" + name, whole);
  }
  checkpoint_test::write_bytes(path + "/notes.txt", "mine");
  CHECK(load_test::contains(osdn::checkpoint::verify(path).problem, "notes.txt: not part of the checkpoint"));
}

TEST_CASE("a directory renamed to another step is refused", "[load]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = checkpoint_test::write_one(directory.path(), 1);
  load_test::copy(path, directory.path() + "/step_00000007");
  const std::string message = load_test::message_of<osdn::DataError>(
      [&] { osdn::checkpoint::load(directory.path() + "/step_00000007"); });
  CHECK(load_test::contains(message, "is of step 1, the directory's name says 7"));
  load_test::copy(path, directory.path() + "/best");
  CHECK(osdn::checkpoint::load(directory.path() + "/best").snapshot.step == 1);
}

TEST_CASE("moments sharded over any number of ranks load as whole tensors", "[load]") {
  const int64_t world_size = GENERATE(1, 2, 3, 7);
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/step_00000005";
  load_test::write_sharded(path, 5, world_size, false);
  CHECK(checkpoint_test::is_snapshot(osdn::checkpoint::load(path).snapshot, 5));
}

TEST_CASE("a moment that no shard holds is named", "[load]") {
  const osdn::TemporaryDirectory directory;
  const std::string path = directory.path() + "/step_00000005";
  load_test::write_sharded(path, 5, 2, true);
  const std::string message = load_test::message_of<osdn::DataError>([&] { osdn::checkpoint::load(path); });
  CHECK(load_test::contains(message, "model.embeddings.weight"));
  CHECK(load_test::contains(message, "in no optimizer shard"));
}

// What lies in a checkpoints directory after kills, copies by hand and a full disk.
TEST_CASE("resuming takes the newest complete checkpoint and says what it passed over", "[load]") {
  const osdn::TemporaryDirectory directory;
  const std::string root = directory.path();
  std::filesystem::rename(checkpoint_test::write_one(root, 200), root + "/step_200");
  std::filesystem::rename(checkpoint_test::write_one(root, 300), root + "/step_300");
  std::filesystem::rename(checkpoint_test::write_one(root, 400), root + "/step_400");
  load_test::copy(root + "/step_200", root + "/step_500.tmp");
  load_test::copy(root + "/step_300", root + "/step_0300 copy");
  const std::string model = root + "/step_300/model.safetensors";
  std::filesystem::resize_file(model, std::filesystem::file_size(model) - 100);
  std::filesystem::remove(root + "/step_400/optimizer-0-of-1.safetensors");
  std::filesystem::create_directory(root + "/step_600");
  checkpoint_test::write_bytes(root + "/step_700", "a file");
  std::filesystem::remove(root + "/latest");
  std::filesystem::create_symlink("step_900", root + "/latest");

  const auto loaded = osdn::checkpoint::load_newest(root);
  REQUIRE(loaded.has_value());
  CHECK(checkpoint_test::is_snapshot(loaded->snapshot, 200));
  std::string skipped;
  for (const std::string& line : loaded->skipped) skipped += line + "\n";
  for (const char* expected :
       {"step_0300 copy: not a checkpoint's name", "step_500.tmp: not a checkpoint's name",
        "step_700: not a directory", "step_600/manifest.json: missing",
        "step_400/optimizer-0-of-1.safetensors: missing", "step_300/model.safetensors: "})
    CHECK(load_test::contains(skipped, expected));
  CHECK(load_test::contains(skipped, "truncated"));

  osdn::checkpoint::Writer writer(root, checkpoint_test::options(2));
  writer.save(checkpoint_test::snapshot(250));
  CHECK(osdn::checkpoint::verify(root + "/step_200").intact);
  writer.save(checkpoint_test::snapshot(300));
  CHECK_FALSE(std::filesystem::exists(root + "/step_200"));
  for (const char* kept : {"step_00000250", "step_00000300"})
    CHECK(osdn::checkpoint::verify(root + "/" + kept).intact);
  for (const char* foreign :
       {"step_300", "step_400", "step_500.tmp", "step_600", "step_700", "step_0300 copy"})
    CHECK(std::filesystem::exists(root + "/" + foreign));
  CHECK(osdn::read_file(root + "/latest") == "step_00000300\n");
  CHECK(osdn::checkpoint::load_newest(root)->snapshot.step == 300);
}

TEST_CASE("no checkpoint is no error, only damaged ones are", "[load]") {
  const osdn::TemporaryDirectory directory;
  CHECK_FALSE(osdn::checkpoint::load_newest(directory.path() + "/absent").has_value());
  CHECK_FALSE(osdn::checkpoint::load_newest(directory.path()).has_value());
  const std::string path = checkpoint_test::write_one(directory.path(), 3);
  std::filesystem::remove(path + "/state.json");
  const std::string message =
      load_test::message_of<osdn::DataError>([&] { osdn::checkpoint::load_newest(directory.path()); });
  CHECK(load_test::contains(message, "none of 1 checkpoints"));
  CHECK(load_test::contains(message, "state.json: missing"));
}

TEST_CASE("leftovers of writers go for the run, not for a reader, and foreign entries stay", "[load]") {
  const osdn::TemporaryDirectory directory;
  const std::string root = directory.path();
  checkpoint_test::write_one(root, 3);
  // The first process is alive, as in a container that uses the same numbers again; the run's lock says it is
  // not ours.
  const std::vector<std::string> leftovers = {".tmp-step_00000004-1", ".tmp-step_00000004-999999999",
                                              ".tmp-step_00000004-7.old-7"};
  for (const std::string& name : leftovers) std::filesystem::create_directory(root + "/" + name);
  for (const char* name : {".tmp-foreign", ".tmp-step_x-5"})
    std::filesystem::create_directory(root + "/" + name);
  checkpoint_test::write_bytes(root + "/" + leftovers[0] + "/model.safetensors", "half");
  checkpoint_test::write_bytes(root + "/latest.tmp-12", "step");
  CHECK(osdn::checkpoint::load_newest(root, osdn::checkpoint::Leftovers::kKeep)->snapshot.step == 3);
  for (const std::string& name : leftovers) CHECK(std::filesystem::exists(root + "/" + name));
  CHECK(osdn::checkpoint::load_newest(root)->snapshot.step == 3);
  CHECK(checkpoint_test::names_in(root) ==
        std::vector<std::string>{".tmp-foreign", ".tmp-step_x-5", "latest", "step_00000003"});
}
