// What a preparation was asked for: checked, and described so that two requests can be told apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/config.h"
#include "data/documents.h"

namespace osdn::data::detail {

/// Throws UserError naming the key.
void check_settings(const config::Prepare& settings);

/// Everything that decides what the shards hold, inputs aside.
Json describe(const config::Prepare& settings, uint64_t builtin_seed);
Json describe(const std::vector<InputFile>& files);

/// Of two descriptions of settings: the first key that differs, or "the input files".
std::string first_difference(const Json& before, const Json& after);

}  // namespace osdn::data::detail
