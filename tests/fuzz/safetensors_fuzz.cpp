// The safetensors reader on one file. What it accepts has tensors that fill the file's data exactly.
#include "checkpoint/safetensors.h"

#include "tensor/torch.h"
#include "tests/fuzz/support.h"

namespace osdn::fuzz {

void run(std::string_view input) {
  static ScratchFile file;
  file.assign(input);
  accepts([&] {
    Digest128 digest;
    const checkpoint::SafetensorsFile content = checkpoint::read_safetensors(file.path(), &digest);
    require(digest.hex() == osdn::digest(input).hex(), "the digest is the file's");
    size_t bytes = 0;
    for (const auto& [name, tensor] : content.tensors) bytes += tensor.nbytes();
    require(bytes <= input.size(), "tensors are no larger than their file");
  });
}

}  // namespace osdn::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  osdn::fuzz::run(osdn::fuzz::view(bytes, size));
  return 0;
}
