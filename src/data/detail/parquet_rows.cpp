#include "data/detail/parquet_rows.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "data/detail/parquet_frames.h"

extern char** environ;

namespace osdn::data::detail {
namespace parquet_rows_detail {

constexpr size_t kCopyBytes = 1 << 20;
constexpr uint64_t kLargestPayloadBytes = uint64_t{1} << 32;  // a row holds less than 2^31 bytes

/// The unpacked content of a file, in a file without a name.
File unpack(const std::string& path, Compression compression) {
  const TemporaryDirectory folder;
  const std::string unpacked = folder.path() + "/unpacked.parquet";
  File file = File::create(unpacked);
  const std::unique_ptr<InputStream> input = open_input(path, compression);
  std::string block(kCopyBytes, '\0');
  while (const size_t got = input->read(block.data(), block.size())) file.write(block.data(), got);
  return File::open_for_reading(unpacked);
}

}  // namespace parquet_rows_detail

std::string parquet_reader_path() {
  std::error_code failure;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failure);
  return (program.parent_path().parent_path() / "lib" / "osdn_parquet").string();
}

void require_parquet_reader(const std::string& input) {
  const std::string reader = parquet_reader_path();
  if (::access(reader.c_str(), X_OK) == 0) return;
  throw EnvironmentError(
      "{}: reading Parquet needs {}, which is not there: this build was made without Arrow (run "
      "scripts/setup.sh and "
      "build again, or convert the file to .jsonl)",
      input, reader);
}

ParquetRows::ParquetRows(const std::string& path, Compression compression, const std::string& key)
    : path_(path) {
  require_parquet_reader(path);
  start(compression == Compression::kNone ? File::open_for_reading(path)
                                          : parquet_rows_detail::unpack(path, compression),
        key);
  FrameHeader header;
  receive(&header, sizeof header);
  if (header.kind == FrameKind::kUserError) throw UserError("{}: {}", path_, receive_text(header.size_bytes));
  if (header.kind == FrameKind::kDamagedError)
    throw DataError("{}: not a whole Parquet file: {} (fetch the file again)", path_,
                    receive_text(header.size_bytes));
  OSDN_ASSERT(header.kind == FrameKind::kOpened && header.size_bytes == sizeof num_rows_,
              "the Parquet reader began with frame {}", static_cast<uint32_t>(header.kind));
  receive(&num_rows_, sizeof num_rows_);
}

void ParquetRows::start(const File& file, const std::string& key) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw EnvironmentError("{}: cannot make a pipe: {}", path_, std::strerror(errno));
  reader_.pipe = ends[0];
  ::fcntl(reader_.pipe, F_SETPIPE_SZ,
          static_cast<int>(kParquetBatchBytes));  // the default works as well, a little slower
  const std::string program = parquet_reader_path();
  std::string name = "osdn_parquet";
  std::string key_argument = key;
  char* const arguments[] = {name.data(), key_argument.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, file.descriptor(), kParquetFileDescriptor);
  const int status = ::posix_spawn(&reader_.process, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (status != 0) {
    reader_.process = -1;
    throw EnvironmentError("{}: cannot start {}: {}", path_, program, std::strerror(status));
  }
}

ParquetRows::Reader::~Reader() {
  if (pipe >= 0) ::close(pipe);
  if (process <= 0) return;
  ::kill(process, SIGKILL);  // when it is left before its end
  ::waitpid(process, nullptr, 0);
}

void ParquetRows::receive(void* data, size_t size_bytes) {
  size_t done = 0;
  while (done < size_bytes) {
    const ssize_t got = ::read(reader_.pipe, static_cast<char*>(data) + done, size_bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw EnvironmentError("{}: cannot read from the Parquet reader: {}", path_, std::strerror(errno));
    if (got == 0) report_end();
    done += static_cast<size_t>(got);
  }
}

std::string ParquetRows::receive_text(uint64_t size_bytes) {
  std::string text(size_bytes, '\0');
  receive(text.data(), text.size());
  return text;
}

/// The pipe ended although the reader had not said so.
void ParquetRows::report_end() {
  int status = 0;
  ::waitpid(reader_.process, &status, 0);
  reader_.process = -1;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
    throw EnvironmentError("{}: after row {}: the Parquet reader was killed (is memory short?)", path_,
                           rows_read_);
  if (WIFSIGNALED(status))
    throw DataError(
        "{}: after row {}: the Parquet reader ended by signal {}: the file is damaged (fetch it again)",
        path_, rows_read_, WTERMSIG(status));
  throw EnvironmentError("{}: after row {}: {} ended with exit code {} (its message is above)", path_,
                         rows_read_, parquet_reader_path(), WEXITSTATUS(status));
}

bool ParquetRows::next(std::string* texts, std::vector<int64_t>* lengths) {
  if (ended_) return false;
  FrameHeader header;
  receive(&header, sizeof header);
  OSDN_ASSERT(header.size_bytes <= parquet_rows_detail::kLargestPayloadBytes,
              "the Parquet reader sends {} bytes", header.size_bytes);
  if (header.kind == FrameKind::kDamagedError)
    throw DataError("{}: damaged after row {}: {} (fetch the file again)", path_, rows_read_,
                    receive_text(header.size_bytes));
  if (header.kind == FrameKind::kEnd) {
    ended_ = true;
    if (rows_read_ != num_rows_)
      throw DataError("{}: damaged: expected {} rows, found {} (fetch the file again)", path_, num_rows_,
                      rows_read_);
    return false;
  }
  OSDN_ASSERT(header.kind == FrameKind::kRows, "the Parquet reader sent frame {}",
              static_cast<uint32_t>(header.kind));
  lengths->resize(header.num_rows);
  const size_t lengths_bytes = lengths->size() * sizeof(int64_t);
  receive(lengths->data(), lengths_bytes);
  texts->resize(header.size_bytes - lengths_bytes);
  receive(texts->data(), texts->size());
  rows_read_ += header.num_rows;
  return true;
}

}  // namespace osdn::data::detail
