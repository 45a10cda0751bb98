// The recipes of data/ are checked as `osdn config check` does it.
#include <filesystem>
#include <string>

#include "base/fs.h"
#include "config/yaml.h"
#include "tests/support/catch.h"

namespace osdn::data {

TEST_CASE("Every recipe has a README and configurations that are valid and prepare something", "[recipes]") {
  int64_t recipes = 0;
  for (const auto& folder : std::filesystem::directory_iterator(OSDN_SOURCE_DIR "/data")) {
    if (!folder.is_directory()) continue;
    ++recipes;
    const std::string path = folder.path().string();
    CAPTURE(path);
    const std::string readme = read_file(path + "/README.md");
    CHECK(readme.find("osdn prepare") != std::string::npos);
    CHECK(std::filesystem::exists(path + "/prepare.yaml"));
    for (const std::string& file : glob_paths(path + "/*.yaml")) {
      CAPTURE(file);
      config::Config config;
      CHECK_NOTHROW(config = config::load(file, {}));
      CHECK_FALSE(config.prepare.input.empty());
      CHECK(config.prepare.output.rfind("shards/", 0) == 0);
      const std::string name = std::filesystem::path(file).filename().string();
      CHECK(readme.find(name) != std::string::npos);
      // What is trained on is what was prepared.
      for (const config::WeightedSource& source : config.data.train)
        CHECK(source.path.rfind(config.prepare.output + "/", 0) == 0);
    }
  }
  CHECK(recipes >= 4);
}

}  // namespace osdn::data
