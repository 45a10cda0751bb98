// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), as TFRecord frames carry it.
#pragma once

#include <cstdint>
#include <string_view>

namespace osdn::metrics::detail {

uint32_t crc32c(std::string_view data);

/// The CRC rotated right by 15 bits plus 0xA282EAD8, so that the CRC of data that holds CRCs stays
/// meaningful.
uint32_t masked_crc32c(std::string_view data);

}  // namespace osdn::metrics::detail
