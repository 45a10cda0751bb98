// What must be settled before the first step: device, precision, micro-batch, vocabulary, loader options;
// each with its message when it can't be had.
#pragma once

#include <optional>

#include "config/config.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "tensor/fwd.h"

namespace osdn::train {

/// The device of this process. Throws EnvironmentError when CUDA is asked for and there is no GPU, with the
/// reason.
at::Device choose_device(config::Device wanted);

/// Fills every automatic value that the run freezes: device, precision, micro-batch, vocabulary (from the
/// tokenizer). Throws UserError for combinations that do not divide.
void freeze_automatic_values(config::Config& config, at::Device device, int64_t world_size,
                             const std::optional<data::Tokenizer>& tokenizer);

/// The tokenizer that the configuration names, if it names one.
std::optional<data::Tokenizer> open_tokenizer(const config::Data& data);

/// Loader options of a frozen configuration.
data::LoaderOptions loader_options(const config::Config& config, int64_t rank, int64_t world_size,
                                   int64_t samples_consumed);

/// Throws UserError when the shards were made with another tokenizer than data.tokenizer.
void check_tokenizer(const data::Loader& loader, const data::Tokenizer& tokenizer, const std::string& path);

at::ScalarType compute_dtype(config::Precision precision);

}  // namespace osdn::train
