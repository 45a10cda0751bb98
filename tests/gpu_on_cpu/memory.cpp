#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "tests/gpu_on_cpu/streams.h"

namespace osdn::gpu_on_cpu {
namespace memory_detail {

constexpr size_t kBytes = size_t{16} << 30;  // addresses; pages are taken when they are touched
constexpr size_t kAlignment = 512;

/// A file of this process in memory, mapped once, from which all is taken and to which it returns.
struct Memory {
  Memory() : owner(::getpid()), file(::memfd_create("gpu-on-cpu", MFD_CLOEXEC)) {
    void* mapped = MAP_FAILED;
    if (file >= 0 && ::ftruncate(file, static_cast<off_t>(kBytes)) == 0)
      mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (mapped == MAP_FAILED)
      throw EnvironmentError("no memory for the tests' GPU: {}", std::strerror(errno));
    base = static_cast<char*>(mapped);
  }

  pid_t owner;
  int file;
  char* base = nullptr;
  std::mutex mutex;
  size_t end = 0;
  std::map<void*, size_t> taken;          // bytes
  std::multimap<size_t, void*> returned;  // by bytes
};

/// A forked process has one of its own.
Memory& memory() {
  static std::mutex mutex;
  static Memory* instance = nullptr;
  const std::lock_guard lock(mutex);
  if (!instance || instance->owner != ::getpid()) instance = new Memory();
  return *instance;
}

struct Exported {
  pid_t process;
  int file;
  uint64_t offset;
};

}  // namespace memory_detail

void* allocate(size_t bytes) {
  memory_detail::Memory& memory = memory_detail::memory();
  const size_t size =
      (bytes + memory_detail::kAlignment - 1) / memory_detail::kAlignment * memory_detail::kAlignment;
  if (size == 0) return nullptr;
  const std::lock_guard lock(memory.mutex);
  if (const auto found = memory.returned.lower_bound(size);
      found != memory.returned.end() && found->first <= 2 * size) {
    void* address = found->second;
    memory.taken[address] = found->first;
    memory.returned.erase(found);
    return address;
  }
  if (memory.end + size > memory_detail::kBytes) throw EnvironmentError("the tests' GPU is full");
  void* address = memory.base + memory.end;
  memory.end += size;
  memory.taken[address] = size;
  return address;
}

void free_memory(void* address) {
  if (!address) return;
  memory_detail::Memory& memory = memory_detail::memory();
  const std::lock_guard lock(memory.mutex);
  const auto found = memory.taken.find(address);
  if (found == memory.taken.end()) return;  // of the process that this one was forked from
  memory.returned.emplace(found->second, address);
  memory.taken.erase(found);
}

std::string export_address(const void* address) {
  memory_detail::Memory& memory = memory_detail::memory();
  const memory_detail::Exported exported{
      .process = memory.owner,
      .file = memory.file,
      .offset = static_cast<uint64_t>(static_cast<const char*>(address) - memory.base)};
  std::string text(sizeof(exported), '\0');
  std::memcpy(text.data(), &exported, sizeof(exported));
  return text;
}

std::pair<void*, const void*> open_address(const std::string& text) {
  memory_detail::Exported exported{};
  OSDN_ASSERT(text.size() == sizeof(exported), "an exported address of {} bytes", text.size());
  std::memcpy(&exported, text.data(), sizeof(exported));
  if (exported.process == ::getpid()) return {nullptr, memory_detail::memory().base + exported.offset};
  const std::string path = fmt::format("/proc/{}/fd/{}", exported.process, exported.file);
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* mapped = MAP_FAILED;
  if (file >= 0) {
    mapped = ::mmap(nullptr, memory_detail::kBytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, file, 0);
    ::close(file);
  }
  if (mapped == MAP_FAILED) throw EnvironmentError("{}: {}", path, std::strerror(errno));
  return {mapped, static_cast<const char*>(mapped) + exported.offset};
}

void close_memory(void* mapped) {
  if (mapped) ::munmap(mapped, memory_detail::kBytes);
}

}  // namespace osdn::gpu_on_cpu
