// A checkpoint directory. Input: manifest.json, state.json, model.safetensors and an optimizer shard, between
// separators. They are loaded twice: as they are, and under a manifest with the right digests, so that what
// stands behind the digests is reached too.
#include <filesystem>

#include "base/fs.h"
#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "tests/fuzz/support.h"
#include "train/state.h"

namespace osdn::fuzz {
namespace {

/// One step directory, below a folder that goes when the process ends.
const std::string& step_directory() {
  static const TemporaryDirectory folder;
  static const std::string path = [] {
    const std::string step = folder.path() + "/" + checkpoint::step_name(3);
    std::filesystem::create_directory(step);
    return step;
  }();
  return path;
}

void put(const std::string& name, std::string_view bytes) {
  File::create(step_directory() + "/" + name).write(bytes);
}

void load_once() {
  const checkpoint::Verdict verdict = checkpoint::verify(step_directory());
  accepts([&] {
    const checkpoint::Loaded loaded = checkpoint::load(step_directory());
    require(verdict.intact, "what loads is intact");
    require(loaded.snapshot.step == 3, "the step is the directory's");
    train::TrainState::from_json(loaded.snapshot.state);
  });
}

}  // namespace

void run(std::string_view input) {
  const auto files = parts(input, 4);
  const std::string optimizer = checkpoint::optimizer_name(0, 1);
  put(checkpoint::kStateFile, files[1]);
  put(checkpoint::kModelFile, files[2]);
  put(optimizer, files[3]);
  put(checkpoint::kManifestFile, files[0]);
  load_once();

  const auto described = [](const std::string& name, std::string_view bytes) {
    return checkpoint::ManifestFile{name, bytes.size(), digest(bytes).hex()};
  };
  checkpoint::Manifest manifest;
  manifest.step = 3;
  manifest.num_optimizer_shards = 1;
  manifest.files = {described(checkpoint::kModelFile, files[2]), described(checkpoint::kStateFile, files[1]),
                    described(optimizer, files[3])};
  put(checkpoint::kManifestFile, checkpoint::to_text(manifest));
  load_once();
}

}  // namespace osdn::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  osdn::fuzz::run(osdn::fuzz::view(bytes, size));
  return 0;
}
