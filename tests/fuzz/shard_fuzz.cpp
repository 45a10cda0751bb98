// A token shard (HDF5): opened, every token read, its digest compared.
#include "data/shard.h"
#include "tests/fuzz/support.h"

namespace osdn::fuzz {

void run(std::string_view input) {
  static ScratchFile file;
  file.assign(input);
  accepts([&] {
    const data::ShardReader shard(file.path());
    require(shard.document_offsets().back() == shard.num_tokens(), "documents cover the tokens");
    int32_t last = 0;
    shard.read(shard.num_tokens() - 1, 1, &last);
    require(last >= 0 && last < shard.vocab_size(), "ids are below the vocabulary");
    shard.verify();
  });
}

}  // namespace osdn::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  osdn::fuzz::run(osdn::fuzz::view(bytes, size));
  return 0;
}
