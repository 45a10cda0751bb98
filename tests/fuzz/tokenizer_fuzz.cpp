// A sentencepiece model. Input: the model, and after a separator a text. What loads encodes any valid UTF-8
// and decodes any ids; a model that calls itself lossless gives every text back.
#include "data/tokenizer.h"
#include "tests/fuzz/support.h"

namespace osdn::fuzz {
namespace {

void exercise(const data::Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  if (!accepts([&] { ids = tokenizer.encode(text); })) return;
  for (const int32_t id : ids)
    require(id >= 0 && id < tokenizer.vocab_size(), "ids are below the vocabulary");
  std::string decoded;
  if (accepts([&] { decoded = tokenizer.decode(ids); }) && tokenizer.lossless())
    require(decoded == text, "a lossless model gives the text back");
}

}  // namespace

void run(std::string_view input) {
  using namespace std::string_view_literals;
  const auto files = parts(input, 2);
  accepts([&] {
    const data::Tokenizer tokenizer = data::Tokenizer::from_model(std::string(files[0]));
    for (const std::string_view text :
         {"Hello world  12\n\tand \xC3\xBC\xE2\x96\x81\xF0\x9F\x98\x80</s><s>\0\x01"sv,
          "aaaaaaaaaaaaaaaa  "sv, files[1]})
      exercise(tokenizer, text);
    std::vector<int32_t> every(static_cast<size_t>(tokenizer.vocab_size()));
    for (size_t id = 0; id < every.size(); ++id) {
      every[id] = static_cast<int32_t>(id);
      tokenizer.piece_bytes(every[id]);
    }
    accepts([&] { tokenizer.decode(every); });
  });
}

}  // namespace osdn::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  osdn::fuzz::run(osdn::fuzz::view(bytes, size));
  return 0;
}
