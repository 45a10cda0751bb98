#include "metrics/jsonl_writer.h"

#include <sys/stat.h>

#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace osdn::metrics {
namespace {

// Lines of a file with their byte positions, read in blocks: a long run's file can be larger than memory
// likes.
class LineReader {
 public:
  explicit LineReader(File& file) : file_(file) {}

  /// The next line that ends with a line break; undefined at the end, where `rest_bytes` may be left over.
  std::optional<std::string> next() {
    for (;;) {
      const size_t end = buffer_.find('\n', consumed_);
      if (end != std::string::npos) {
        std::string line = buffer_.substr(consumed_, end - consumed_);
        position_ += line.size() + 1;
        consumed_ = end + 1;
        return line;
      }
      buffer_.erase(0, consumed_);
      consumed_ = 0;
      constexpr size_t kBlockBytes = 1 << 20;
      const size_t kept = buffer_.size();
      buffer_.resize(kept + kBlockBytes);
      const size_t got = file_.read(buffer_.data() + kept, kBlockBytes);
      buffer_.resize(kept + got);
      if (got == 0) return std::nullopt;
    }
  }

  /// Bytes of the lines handed out so far.
  uint64_t position() const { return position_; }
  size_t rest_bytes() const { return buffer_.size() - consumed_; }

 private:
  File& file_;
  std::string buffer_;
  size_t consumed_ = 0;
  uint64_t position_ = 0;
};

int64_t step_of(const std::string& line, const std::string& path, int64_t number) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const bool is_record = object.is_object() && object.contains("step") && is_json_integer(object["step"]);
  if (!is_record) {
    constexpr size_t kMaxShown = 80;
    throw DataError(
        "{}:{}: expected a metrics object with an integer \"step\", got \"{}\" (move the file away to go on "
        "without it)",
        path, number, line.substr(0, kMaxShown));
  }
  return json_integer(object["step"]);
}

// Bytes of the lines up to `last_step`.
uint64_t find_end(File& file, int64_t last_step) {
  LineReader reader(file);
  int64_t previous = -1;
  for (int64_t number = 1;; ++number) {
    const uint64_t start = reader.position();
    const std::optional<std::string> line = reader.next();
    if (!line) {
      if (reader.rest_bytes() > 0)
        log::warning("{}: dropped {} bytes of a line that was cut off", file.path(), reader.rest_bytes());
      return start;
    }
    const int64_t step = step_of(*line, file.path(), number);
    if (step > last_step) return start;
    if (step <= previous)
      throw DataError("{}:{}: expected a step above {}, got {} (written by two runs at once?)", file.path(),
                      number, previous, step);
    previous = step;
  }
}

}  // namespace

JsonlWriter::JsonlWriter(const std::string& path, int64_t last_step) : file_(File::open_for_appending(path)) {
  const uint64_t end = find_end(file_, last_step);
  if (end != file_.size_bytes()) file_.truncate(end);
  const std::string parent = std::filesystem::path(path).parent_path().string();
  sync_directory(parent.empty() ? "." : parent);
}

void JsonlWriter::append(const StepRecord& record) { file_.write(to_json_line(record) + "\n"); }

void JsonlWriter::sync() {
  file_.sync();
  struct stat open {};
  struct stat named {};
  // Without this a run whose directory was removed, or replaced by an editor, would go on writing into
  // nothing.
  if (::fstat(file_.descriptor(), &open) != 0 || ::stat(file_.path().c_str(), &named) != 0 ||
      open.st_dev != named.st_dev || open.st_ino != named.st_ino)
    throw EnvironmentError("{}: was moved, removed or replaced while the run was writing to it",
                           file_.path());
}

}  // namespace osdn::metrics
