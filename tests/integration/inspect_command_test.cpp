// `osdn inspect` on everything that the program writes.
#include <string>

#include "base/fs.h"
#include "base/json.h"
#include "tests/integration/run_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace osdn::test {

TEST_CASE("shards, a run, its checkpoints and its export are intact until a byte changes",
          "[inspect_command]") {
  const RunFolder folder;
  REQUIRE(folder.train({"train.steps=4", "model.osdn.hypergradient=beta_free"}).exit_code == 0);
  REQUIRE(run_osdn({"export", "runs/small", "--output", "exported"}, folder.path()).exit_code == 0);
  const std::string checkpoint = "runs/small/checkpoints/step_00000004";
  for (const char* path : {"shards", "shards/train-00000.h5", "shards/tokenizer.model", "runs/small",
                           "runs/small/checkpoints", checkpoint.c_str(), "exported"}) {
    const ProcessResult result = run_osdn({"inspect", path}, folder.path());
    INFO(path << ":\n" << result.out << result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.out.find("\nverdict: intact\n") != std::string::npos);
  }
}

TEST_CASE("inspect --json is one object, and code 4 names what is damaged", "[inspect_command]") {
  const RunFolder folder;
  REQUIRE(folder.train({"train.steps=3"}).exit_code == 0);
  const Json whole = Json::parse(run_osdn({"inspect", "--json", "runs/small"}, folder.path()).out);
  CHECK(whole["intact"] == true);
  REQUIRE(whole["findings"].size() == 3);  // the run, its checkpoints, one checkpoint
  CHECK(whole["findings"][0]["facts"]["last_step"] == 3);
  CHECK(whole["findings"][2]["kind"] == "checkpoint");
  CHECK(whole["findings"][2]["facts"]["tokens"] == 3 * 512);

  const std::string model = folder.run() + "/checkpoints/step_00000003/model.safetensors";
  std::string bytes = read_file(model);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  atomic_write(model, bytes);
  const ProcessResult damaged = run_osdn({"inspect", "--json", "runs/small"}, folder.path());
  CHECK(damaged.exit_code == 4);
  const Json json = Json::parse(damaged.out);
  CHECK(json["intact"] == false);
  CHECK(json["findings"][2]["problems"].size() == 1);
  check_mentions(damaged.err, {"model.safetensors"});
  const ProcessResult text = run_osdn({"inspect", "runs/small"}, folder.path());
  CHECK(text.exit_code == 4);
  check_mentions(text.out, {"DAMAGED: ", "verdict: DAMAGED\n"});
}

}  // namespace osdn::test
