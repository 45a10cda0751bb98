// Documents out of a .txt or .jsonl file, plain or packed. First byte: the format, the key, what happens to
// broken records, and how the file is packed; then the file. A plain file read in blocks, or split at once,
// gives the same documents.
#include "data/documents.h"
#include "tests/fuzz/support.h"

namespace osdn::fuzz {
namespace {

struct Outcome {
  bool accepted = false;
  std::vector<std::string> texts;
  int64_t skipped = 0;
  bool operator==(const Outcome& other) const {
    return accepted == other.accepted && (!accepted || (texts == other.texts && skipped == other.skipped));
  }
};

void add(const data::SplitDocuments& split, Outcome* outcome) {
  outcome->texts.insert(outcome->texts.end(), split.texts.begin(), split.texts.end());
  outcome->skipped += split.skipped.total();
}

Outcome split_at_once(std::string_view bytes, data::InputFormat format, const config::Prepare& settings) {
  Outcome outcome;
  outcome.accepted = accepts([&] {
    data::RawDocuments raw;
    raw.format = format;
    raw.origin = "fuzz";
    raw.bytes = bytes;
    add(data::split_documents(raw, settings), &outcome);
  });
  return outcome;
}

Outcome read_in_blocks(const data::InputFile& file, const config::Prepare& settings) {
  constexpr size_t kEnough = size_t{64} << 20;  // a packed file may stand for a thousand times its size
  Outcome outcome;
  outcome.accepted = accepts([&] {
    data::InputReader reader(settings, {file}, 1);
    data::RawDocuments raw;
    for (size_t bytes = 0; bytes < kEnough && reader.next(&raw); bytes += raw.bytes.size())
      add(data::split_documents(raw, settings), &outcome);
  });
  return outcome;
}

/// A plain file with these first bytes is refused for its name, which splitting does not know.
bool read_as_packed(std::string_view bytes) {
  return bytes.substr(0, 2) == "\x1F\x8B" || bytes.substr(0, 4) == "\x28\xB5\x2F\xFD";
}

}  // namespace

void run(std::string_view input) {
  if (input.empty()) return;
  const auto choice = static_cast<unsigned char>(input.front());
  const std::string_view bytes = input.substr(1);
  config::Prepare settings;
  settings.text_key = (choice & 2) == 0 ? "text" : "a.b.c";
  settings.on_error = (choice & 4) == 0 ? "stop" : "skip";
  settings.max_record_bytes = int64_t{16} << 20;
  const auto format = (choice & 1) == 0 ? data::InputFormat::kJsonLines : data::InputFormat::kText;

  static ScratchFile plain("input");
  static ScratchFile gzip("input.gz");
  static ScratchFile zstd("input.zst");
  ScratchFile& file = (choice & 8) == 0 ? plain : (choice & 16) == 0 ? gzip : zstd;
  file.assign(bytes);
  const Outcome read = read_in_blocks(
      {.path = file.path(), .format = format, .size_bytes = static_cast<int64_t>(bytes.size())}, settings);
  for (const std::string& text : read.texts) static_cast<void>(data::is_empty_document(text));
  if (&file == &plain && !read_as_packed(bytes))
    require(read == split_at_once(bytes, format, settings), "both ways give the same documents");
}

}  // namespace osdn::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  osdn::fuzz::run(osdn::fuzz::view(bytes, size));
  return 0;
}
