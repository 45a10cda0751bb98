// Shows the stages of data::prepare on stderr: a bar on a terminal, plain lines otherwise.
#pragma once

#include <functional>

#include "data/prepare.h"

namespace osdn::apps {

/// To be called with every report; shows each stage's MB, MB/s and time left.
std::function<void(const data::PrepareProgress&)> show_prepare_progress();

}  // namespace osdn::apps
