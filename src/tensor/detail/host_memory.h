// Peak resident set of this process in bytes.
#pragma once

#include <cstdint>

namespace osdn::detail {

uint64_t peak_resident_bytes();

}  // namespace osdn::detail
