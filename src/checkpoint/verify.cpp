#include "checkpoint/verify.h"

#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"

namespace osdn::checkpoint {

Verdict verify(const std::string& directory) {
  Verdict verdict;
  try {
    const Manifest manifest = read_manifest(directory);
    verdict.step = manifest.step;
    verdict.weights_only = manifest.num_optimizer_shards == 0;
    check_listing(directory, manifest);
    read_state(directory, manifest);
    for (const ManifestFile& file : manifest.files)
      if (file.name != kStateFile)
        check_digest(directory, file, digest_file(directory + "/" + file.name).hex());
    verdict.intact = true;
  } catch (const Error& failure) {
    verdict.problem = failure.what();
  }
  return verdict;
}

}  // namespace osdn::checkpoint
