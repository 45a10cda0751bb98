#include "tests/emulation/code_places.h"

#include <link.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <unordered_map>
#include <vector>

namespace osdn::emulation {
namespace {

/// Where the program's file begins in memory: 0 for one that is not position independent.
uintptr_t load_address() {
  uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<uintptr_t*>(out) = info->dlpi_addr;  // the program comes first
        return 1;
      },
      &address);
  return address;
}

std::string hexadecimal(uint32_t number) {
  std::array<char, 16> text = {};
  std::snprintf(text.data(), text.size(), "0x%x", number);
  return text.data();
}

/// What addr2line says about a place: functions and places in turns, innermost first.
using Lines = std::vector<std::string>;
std::unordered_map<uint32_t, Lines> known;

/// Asks for what is not known yet, all at once.
void look_up(const std::vector<uint32_t>& places) {
  std::array<char, 4096> program = {};
  if (readlink("/proc/self/exe", program.data(), program.size() - 1) <= 0) return;
  std::string command = "addr2line -aCfise '" + std::string(program.data()) + "'";
  const size_t bare = command.size();
  for (const uint32_t place : places)
    if (known.try_emplace(place).second) command += " " + hexadecimal(place);
  if (command.size() == bare) return;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((command + " 2>/dev/null").c_str(), "r"), pclose);
  Lines* lines = nullptr;
  std::string line;
  for (int c = pipe ? std::fgetc(pipe.get()) : EOF; c != EOF; c = std::fgetc(pipe.get())) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    if (line.rfind("0x", 0) == 0)
      lines = &known[static_cast<uint32_t>(std::stoul(line, nullptr, 16))];
    else if (lines != nullptr)
      lines->push_back(line);
    line.clear();
  }
}

}  // namespace

uint32_t code_place(const void* address) {
  static const uintptr_t start = load_address();
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) - start);
}

std::string CallChains::describe(uint32_t chain) const {
  std::vector<uint32_t> places;
  for (; chain != 0; chain = links_[chain].caller)
    places.push_back(links_[chain].place - 1);  // within the call
  look_up(places);
  std::string text;
  for (const uint32_t place : places) {
    const Lines& lines = known[place];
    if (lines.empty()) text += " < " + hexadecimal(place);
    for (size_t i = 1; i < lines.size(); i += 2) {
      if (lines[i].rfind("launch.h", 0) == 0) return text.substr(3);
      text += " < " + lines[i];
    }
  }
  return text.substr(3);
}

std::string describe_function(uint32_t place) {
  look_up({place});
  const Lines& lines = known[place];
  return lines.empty() ? "kernel at " + hexadecimal(place) : lines[lines.size() - 2];
}

}  // namespace osdn::emulation
