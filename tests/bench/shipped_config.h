// Where the shipped configurations lie, for benchmarks of whole models.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace osdn::bench {

/// In the source tree the program was built from, else beside the program, as a bundle has it.
inline std::string shipped_config(const std::string& name) {
  const std::string in_source = OSDN_SOURCE_DIR "/configs/" + name;
  std::error_code ignored;
  if (std::filesystem::exists(in_source, ignored)) return in_source;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (program.parent_path().parent_path() / "configs" / name).string();
}

}  // namespace osdn::bench
