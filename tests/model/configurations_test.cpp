// The configurations that ship: how many parameters each has, without allocating one.
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "config/yaml.h"
#include "model/lm.h"
#include "tests/support/test.h"

namespace osdn::test::configurations_test {

struct Row {
  const char* file;
  int64_t plain;
  int64_t layers;  // these three: what OSDN adds by
  int64_t value_heads;
  int64_t head_dim;
};

TEST_CASE("every configuration that ships has the published number of parameters", "[configurations]") {
  // Plain counts: the peers' to the last one. OSDN adds a d0 of value heads x head_dim a layer, the gate of
  // APF a matrix of value heads x hidden size and a bias.
  const std::vector<Row> rows = {
      {"delta_net_340m", 374'362'112, 24, 8, 128},
      {"delta_net_1.3b", 1'365'677'056, 24, 16, 128},
      {"gated_delta_net_340m", 379'888'124, 21, 6, 128},
      {"gated_delta_net_1.3b", 1'387'859'704, 21, 12, 128},
      {"kda_340m", 373'600'312, 23, 8, 128},
      {"kda_1.3b", 1'390'941'568, 24, 16, 128},
  };
  std::map<std::string, int64_t> expected = {
      {"flame_gated_delta_net_340m", 512'272'124},
      {"flame_gated_delta_net_1.3b", 1'387'348'732},
      {"transformer_340m", 373'867'520},
      {"transformer_1.3b", 1'364'297'728},
  };
  for (const Row& row : rows) {
    const int64_t hidden = std::string(row.file).find("1.3b") == std::string::npos ? 1024 : 2048;
    const int64_t start = row.layers * row.value_heads * row.head_dim;
    const int64_t gate = row.layers * (row.value_heads * hidden + row.value_heads);
    expected[row.file] = row.plain;
    expected[std::string("osdn_") + row.file] = row.plain + start;
    expected[std::string("osdn_apf_") + row.file] = row.plain + start + gate;
  }
  std::set<std::string> shipped;
  for (const auto& entry : std::filesystem::directory_iterator(OSDN_SOURCE_DIR "/configs"))
    if (const std::string stem = entry.path().stem(); stem.find("quickstart") == std::string::npos)
      shipped.insert(stem);
  for (const auto& [file, count] : expected) {
    INFO(file);
    CHECK(shipped.erase(file) == 1);
    const config::Config config = config::load(OSDN_SOURCE_DIR "/configs/" + file + ".yaml", {});
    const int64_t found =
        model::count_parameters(model::parameter_specs(config.model, *config.model.vocab_size));
    std::printf("%-32s %13lld parameters\n", file.c_str(), static_cast<long long>(found));
    CHECK(found == count);
  }
  CHECK(shipped.empty());
}

TEST_CASE("kda at 340M with 24 layers has the published number of parameters", "[configurations]") {
  const config::Config config =
      config::load(OSDN_SOURCE_DIR "/configs/kda_340m.yaml", {"model.num_layers=24"});
  CHECK(model::count_parameters(model::parameter_specs(config.model, *config.model.vocab_size)) ==
        386'994'368);
}

}  // namespace osdn::test::configurations_test
