#include <sys/resource.h>

#include "tensor/detail/host_memory.h"

namespace osdn::detail {

uint64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace osdn::detail
