// The output folder of `prepare`: a set of files that appears whole or not at all. Everything is made in a
// hidden folder inside it, where a process that dies leaves what the next one needs to continue. Writing its
// prepare.json is the moment of completion: from then on the files are moved out, by this process or, if it
// dies, by the next.
#pragma once

#include <string>
#include <vector>

#include "base/fs.h"
#include "base/json.h"

namespace osdn::data::detail {

class OutputFolder {
 public:
  /// Creates and locks the folder, and finishes what an interrupted process left complete. Throws UserError
  /// when another process is preparing into it.
  explicit OutputFolder(const std::string& path);

  /// prepare.json of the published set; null without one.
  Json published() const;
  /// Whether the folder holds shards under final names.
  bool holds_shards() const;
  /// Empties the hidden folder, or makes it.
  void begin();
  /// Removes the hidden folder.
  void discard();
  /// Of the unfinished set in the hidden folder; null without one, or when it is damaged.
  Json journal() const;
  void write_journal(const Json& journal) const;
  /// Where to make a file.
  std::string staged(const std::string& name) const;
  std::string final_path(const std::string& name) const;
  /// `manifest` lists the set under "files". Shards of an earlier set are removed.
  void publish(const Json& manifest);

 private:
  void move_out();

  std::string path_;
  std::string staging_;
  FileLock lock_;
};

}  // namespace osdn::data::detail
