// What LibTorch itself writes to stderr.
#pragma once

namespace osdn {

/// Silence, unless the environment has TORCH_CPP_LOG_LEVEL (INFO, WARNING, ERROR): what LibTorch logs of
/// failed connections, with stack traces of a hundred lines, it also throws, and that is told once, by us.
void choose_libtorch_logging();

}  // namespace osdn
