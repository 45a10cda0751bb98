// What compilers call before every access to memory in code compiled with -fsanitize=thread. That sanitizer's
// own library is not linked: these functions take its place.
#include <cstddef>
#include <cstring>

#include "tests/emulation/race_check.h"

namespace {

using osdn::emulation::races::access;
using osdn::emulation::races::Access;

}  // namespace

#define OSDN_ACCESS(name, bytes, kind)                                 \
  void __tsan_##name(const void* address) {                            \
    access(address, bytes, Access::kind, __builtin_return_address(0)); \
  }
#define OSDN_ACCESSES(bytes)                         \
  OSDN_ACCESS(read##bytes, bytes, kRead)             \
  OSDN_ACCESS(write##bytes, bytes, kWrite)           \
  OSDN_ACCESS(unaligned_read##bytes, bytes, kRead)   \
  OSDN_ACCESS(unaligned_write##bytes, bytes, kWrite) \
  OSDN_ACCESS(volatile_read##bytes, bytes, kRead)    \
  OSDN_ACCESS(volatile_write##bytes, bytes, kWrite)

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(const void* caller) { osdn::emulation::races::enter_function(caller); }
void __tsan_func_exit() { osdn::emulation::races::leave_function(); }
OSDN_ACCESSES(1)
OSDN_ACCESSES(2)
OSDN_ACCESSES(4)
OSDN_ACCESSES(8)
OSDN_ACCESSES(16)
void __tsan_read_range(const void* address, size_t bytes) {
  access(address, bytes, Access::kRead, __builtin_return_address(0));
}
void __tsan_write_range(const void* address, size_t bytes) {
  access(address, bytes, Access::kWrite, __builtin_return_address(0));
}
void __tsan_vptr_read(const void*) {}
void __tsan_vptr_update(const void*, const void*) {}

// In place of the library's (instrumented.h).
void* osdn_checked_memcpy(void* target, const void* source, size_t bytes) {
  access(source, bytes, Access::kRead, __builtin_return_address(0));
  access(target, bytes, Access::kWrite, __builtin_return_address(0));
  return std::memcpy(target, source, bytes);
}
void* osdn_checked_memmove(void* target, const void* source, size_t bytes) {
  access(source, bytes, Access::kRead, __builtin_return_address(0));
  access(target, bytes, Access::kWrite, __builtin_return_address(0));
  return std::memmove(target, source, bytes);
}
void* osdn_checked_memset(void* target, int value, size_t bytes) {
  access(target, bytes, Access::kWrite, __builtin_return_address(0));
  return std::memset(target, value, bytes);
}
}
