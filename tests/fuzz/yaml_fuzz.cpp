// The configuration loader. Input: a YAML text, and after a separator `--set` overrides, one a line. What
// loads must also survive being written out and read again.
#include "config/yaml.h"
#include "tests/fuzz/support.h"

namespace osdn::fuzz {
namespace {

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

void run(std::string_view input) {
  const auto files = parts(input, 2);
  accepts([&] {
    const config::Config loaded = config::load_text(std::string(files[0]), "fuzz.yaml", lines_of(files[1]));
    const std::string written = config::dump(loaded);
    const config::Config again = config::load_text(written, "written.yaml", {});
    require(config::dump(again) == written, "a written configuration reads back as itself");
    require(config::differences(loaded, again).empty(), "reading back changes no key");
  });
}

}  // namespace osdn::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  osdn::fuzz::run(osdn::fuzz::view(bytes, size));
  return 0;
}
