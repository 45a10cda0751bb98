// Every backbone as a user has it: trained, stopped and resumed, evaluated, generated from, handed on and
// taken back.
#include "tests/integration/run_fixture.h"
#include "tests/support/raw_safetensors.h"

namespace osdn::test {
namespace backbones_test {

struct Use {
  const char* model_type;  // of the exported directory
  std::vector<std::string> overrides;
  bool has_residuals = true;
};

std::vector<Use> uses() {
  return {
      {"gated_deltanet", {"model.backbone=gated_delta_net", "model.osdn=null", "model.attention.layers=[1]"}},
      {"os_gated_deltanet", {"model.backbone=gated_delta_net", "model.osdn={preset: os_gdn_apf_stategate}"}},
      {"os_kda", {"model.backbone=kda", "model.osdn={preset: os_kda_apf, step_size: 0.1}"}},
      {"transformer", {"model.backbone=transformer", "model.osdn=null"}, false},
  };
}

std::vector<std::string> joined(std::vector<std::string> first, const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST_CASE("every backbone trains, resumes bit by bit, evaluates, generates and comes back from its export",
          "[backbones]") {
  for (const Use& use : uses()) {
    INFO(use.model_type);
    const RunFolder straight;
    const RunFolder stopped;
    const auto train = [&](const RunFolder& folder, const std::string& steps) {
      const ProcessResult result =
          folder.train(joined({"optimizer.schedule=constant", steps}, use.overrides));
      INFO(result.err);
      REQUIRE(result.exit_code == 0);
    };
    train(straight, "train.steps=6");
    train(stopped, "train.steps=3");
    train(stopped, "train.steps=6");
    CHECK(model_bytes(stopped.run(), 6) == model_bytes(straight.run(), 6));
    const std::vector<Json> metrics = timeless_metrics(straight.run());
    CHECK(metrics.back()["loss"].get<double>() < metrics.front()["loss"].get<double>());
    CHECK(metrics.back().contains("q_geo") == use.has_residuals);

    const auto osdn = [&](const std::vector<std::string>& arguments) {
      const ProcessResult result = run_osdn(arguments, straight.path());
      INFO(result.err);
      CHECK(result.exit_code == 0);
      return result.out;
    };
    check_mentions(osdn({"export", "runs/small", "--output", "out"}), {use.model_type, "verified"});
    osdn({"import", "out", "--output", "runs/back"});
    osdn({"export", "runs/back", "--output", "again"});
    CHECK((read_raw_model(straight.path() + "/again") == read_raw_model(straight.path() + "/out")));
    const auto text = [&](const char* run) {
      return osdn({"generate", run, "--prompt", "The", "--max-tokens", "12", "--temperature", "0"});
    };
    CHECK(text("runs/back") == text("runs/small"));
    osdn({"eval", "runs/small", "--suite", "perplexity", "--max-documents", "3"});
    osdn({"report", "runs/small", "--output", "report.html"});
  }
}

}  // namespace backbones_test
}  // namespace osdn::test
