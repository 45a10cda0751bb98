#include "train/run_directory.h"

#include <optional>

#include "base/error.h"
#include "tests/support/test.h"

namespace osdn::test {
namespace run_directory {

config::Config with_gate(config::Backbone backbone, std::optional<bool> use_gate) {
  config::Config config;
  config.model.backbone = backbone;
  config.model.use_gate = use_gate;
  return config;
}

TEST_CASE(
    "a run whose configuration spells out the default of use_gate resumes without the key, and vice versa",
    "[run_directory]") {
  const auto reconciled = [](const config::Config& stored, const config::Config& given) {
    return train::reconcile(stored, given).model.use_gate;
  };
  const auto delta_net = config::Backbone::kDeltaNet;
  const auto gated = config::Backbone::kGatedDeltaNet;
  CHECK(reconciled(with_gate(delta_net, false), with_gate(delta_net, std::nullopt)) == std::nullopt);
  CHECK(reconciled(with_gate(delta_net, std::nullopt), with_gate(delta_net, false)) == false);
  CHECK(reconciled(with_gate(gated, true), with_gate(gated, std::nullopt)) == std::nullopt);
}

TEST_CASE("a run with an output gate does not resume without it", "[run_directory]") {
  const auto delta_net = config::Backbone::kDeltaNet;
  const auto gated = config::Backbone::kGatedDeltaNet;
  CHECK_THROWS_AS(train::reconcile(with_gate(delta_net, true), with_gate(delta_net, std::nullopt)),
                  UserError);
  CHECK_THROWS_AS(train::reconcile(with_gate(gated, false), with_gate(gated, std::nullopt)), UserError);
}

}  // namespace run_directory
}  // namespace osdn::test
