// Parquet files for tests, written by a program of its own (parquet_make.cpp).
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "base/fs.h"
#include "tests/support/process.h"

namespace osdn::data::test {

/// Whether this build reads Parquet.
inline bool has_parquet() { return std::string(OSDN_PARQUET_MAKE) != ""; }

inline const std::string kNullText = "\x15";

/// `shape` and `codec`: parquet_make.cpp has their names.
inline void write_parquet(const std::string& path, const std::vector<std::string>& rows,
                          const std::string& shape = "flat", const std::string& codec = "zstd",
                          size_t rows_per_group = 1000) {
  const TemporaryDirectory folder;
  std::string content;
  for (const std::string& row : rows) content += row + '\x1E';
  atomic_write(folder.path() + "/rows", content);
  const osdn::test::ProcessResult result =
      osdn::test::Process(
          {OSDN_PARQUET_MAKE, path, folder.path() + "/rows", shape, codec, std::to_string(rows_per_group)},
          folder.path())
          .wait();
  if (result.exit_code != 0) throw std::runtime_error("parquet_make failed: " + result.err);
}

}  // namespace osdn::data::test
