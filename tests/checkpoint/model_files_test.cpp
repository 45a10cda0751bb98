#include "checkpoint/model_files.h"

#include <filesystem>
#include <functional>
#include <string>

#include "base/json.h"
#include "tests/checkpoint/support.h"

namespace model_files_test {

using checkpoint_test::contains;
using checkpoint_test::message_of;
using osdn::Json;
using osdn::checkpoint::TensorList;

/// Five tensors of 400 bytes each, two of them half as wide.
TensorList tensors() {
  TensorList made;
  for (const char* name : {"e", "c", "a"})
    made.emplace_back(name, at::arange(100, at::TensorOptions(at::kFloat)));
  made.emplace_back("d", at::ones({200}, at::kBFloat16));
  made.emplace_back("b", at::ones({20, 10}, at::kBFloat16));
  return made;
}

/// A sharded directory of those tensors: a b | c d | e.
class Sharded {
 public:
  Sharded() { osdn::checkpoint::write_model_files(path(), tensors(), 800); }
  const std::string& path() const { return directory_.path(); }
  std::string index_path() const { return path() + "/" + osdn::checkpoint::kModelIndexFile; }
  Json index() const { return osdn::read_json(index_path()); }
  void write_index(const Json& index) const { osdn::atomic_write(index_path(), index.dump()); }
  void change_index(const std::function<void(Json*)>& change) const {
    Json changed = index();
    change(&changed);
    write_index(changed);
  }
  std::string refusal() const {
    return message_of<osdn::DataError>([&] { osdn::checkpoint::read_model_files(path()); });
  }

 private:
  osdn::TemporaryDirectory directory_;
};

constexpr const char* kFirst = "model-00001-of-00003.safetensors";
constexpr const char* kSecond = "model-00002-of-00003.safetensors";
constexpr const char* kThird = "model-00003-of-00003.safetensors";

TEST_CASE("weights in one file and in shards read back bit for bit, sorted by name", "[model_files]") {
  for (const uint64_t max_shard_bytes : {uint64_t{1}, uint64_t{400}, uint64_t{800}, uint64_t{5000000000}}) {
    const osdn::TemporaryDirectory directory;
    const auto names = osdn::checkpoint::write_model_files(directory.path(), tensors(), max_shard_bytes);
    CHECK(names.size() == (max_shard_bytes < 800 ? 6 : max_shard_bytes == 800 ? 4 : 1));
    const auto read = osdn::checkpoint::read_model_files(directory.path());
    REQUIRE(read.tensors.size() == 5);
    for (const auto& [name, tensor] : tensors()) {
      INFO(name);
      const auto& found = read.tensors[static_cast<size_t>(name[0] - 'a')];
      REQUIRE(found.first == name);
      CHECK(found.second.scalar_type() == tensor.scalar_type());
      CHECK(at::equal(found.second, tensor));
    }
    CHECK(read.digests.size() == (names.size() == 1 ? 1 : names.size() - 1));
    CHECK(read.digests[0].second == osdn::digest_file(directory.path() + "/" + read.digests[0].first).hex());
  }
}

TEST_CASE("the index names every tensor, its shard and the sum of the bytes", "[model_files]") {
  const Sharded sharded;
  const Json index = sharded.index();
  CHECK(index["metadata"]["total_size"] == 2000);
  CHECK(index["weight_map"] ==
        Json({{"a", kFirst}, {"b", kFirst}, {"c", kSecond}, {"d", kSecond}, {"e", kThird}}));
}

TEST_CASE("an index that names the wrong shard is refused by tensor and file", "[model_files]") {
  const Sharded sharded;
  sharded.change_index([](Json* index) { (*index)["weight_map"]["b"] = kSecond; });
  const std::string message = sharded.refusal();
  INFO(message);
  CHECK(contains(message, "tensor b lies in " + std::string(kFirst)));
  CHECK(contains(message, "the index says " + std::string(kSecond)));
}

TEST_CASE("a missing shard is refused by file and tensor before anything is read", "[model_files]") {
  const Sharded sharded;
  std::filesystem::remove(sharded.path() + "/" + kThird);
  CHECK(contains(sharded.refusal(), "shard " + std::string(kThird) + " is missing; tensor e"));
}

TEST_CASE("a tensor that is absent from its shard is refused", "[model_files]") {
  const Sharded sharded;
  sharded.change_index([](Json* index) { (*index)["weight_map"]["x"] = kThird; });
  CHECK(contains(sharded.refusal(), "tensor x should lie in " + std::string(kThird)));
}

TEST_CASE("a tensor that the index does not know is refused", "[model_files]") {
  const Sharded sharded;
  sharded.change_index([](Json* index) { (*index)["weight_map"].erase("d"); });
  CHECK(contains(sharded.refusal(), std::string(kSecond) + " holds tensor d"));
}

TEST_CASE("a tensor in two shards is refused", "[model_files]") {
  const Sharded sharded;
  osdn::checkpoint::write_safetensors(sharded.path() + "/" + kThird,
                                      {{"a", at::ones({100})}, {"e", at::ones({100})}}, {});
  CHECK(contains(sharded.refusal(), "tensor a lies in " + std::string(kThird)));
}

TEST_CASE("a wrong sum of bytes is refused, an absent one is not", "[model_files]") {
  const Sharded sharded;
  sharded.change_index([](Json* index) { (*index)["metadata"]["total_size"] = 2001; });
  CHECK(contains(sharded.refusal(), "total_size is 2001"));
  sharded.change_index([](Json* index) { (*index)["metadata"]["total_size"] = 2000.5; });
  CHECK(contains(sharded.refusal(), "total_size"));
  sharded.change_index([](Json* index) { (*index)["metadata"]["total_size"] = -1; });
  CHECK(contains(sharded.refusal(), "total_size"));
  sharded.change_index([](Json* index) { (*index)["metadata"]["total_size"] = 2000.0; });
  CHECK(osdn::checkpoint::read_model_files(sharded.path()).tensors.size() == 5);
  sharded.change_index([](Json* index) { index->erase("metadata"); });
  CHECK(osdn::checkpoint::read_model_files(sharded.path()).tensors.size() == 5);
}

TEST_CASE("a shard outside the directory is refused, whatever lies there", "[model_files]") {
  const Sharded sharded;
  for (const std::string name : {"../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors",
                                 "..\\x.safetensors", ".safetensors", "..", "", "x.bin"}) {
    INFO(name);
    sharded.change_index([&](Json* index) { (*index)["weight_map"]["e"] = name; });
    CHECK(contains(sharded.refusal(), "weight_map: e: \"" + name));
  }
}

TEST_CASE("a damaged index is refused", "[model_files]") {
  const Sharded sharded;
  const auto refusal_of = [&](const std::string& text) {
    osdn::atomic_write(sharded.index_path(), text);
    return sharded.refusal();
  };
  CHECK(contains(refusal_of("{"), "not valid JSON"));
  CHECK(contains(refusal_of("[]"), "no JSON object"));
  CHECK(contains(refusal_of("{}"), "weight_map"));
  CHECK(contains(refusal_of(R"({"weight_map": {}})"), "weight_map"));
  CHECK(contains(refusal_of(R"({"weight_map": {"a": 1}})"), "expected a file name"));
  CHECK(contains(refusal_of(R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})"), "twice"));
  CHECK(contains(refusal_of(R"({"metadata": [], "weight_map": {"a": "x.safetensors"}})"), "metadata"));
}

TEST_CASE("a damaged shard is refused by its name", "[model_files]") {
  const Sharded sharded;
  std::filesystem::resize_file(sharded.path() + "/" + kSecond, 900);
  CHECK(contains(sharded.refusal(), kSecond));
}

TEST_CASE("a directory without weights, with two sets of them or with pickles says what to do",
          "[model_files]") {
  const auto user_refusal = [](const std::string& path) {
    return message_of<osdn::UserError>([&] { osdn::checkpoint::read_model_files(path); });
  };
  const osdn::TemporaryDirectory empty;
  CHECK(contains(user_refusal(empty.path()), "neither model.safetensors nor"));
  CHECK(contains(user_refusal("/nonexistent"), "neither model.safetensors nor"));
  checkpoint_test::write_bytes(empty.path() + "/pytorch_model.bin", "PK");
  CHECK(contains(user_refusal(empty.path()), "convert it first"));
  const Sharded sharded;
  osdn::checkpoint::write_safetensors(sharded.path() + "/model.safetensors", tensors(), {});
  CHECK(contains(sharded.refusal(), "holds both"));
}

}  // namespace model_files_test
