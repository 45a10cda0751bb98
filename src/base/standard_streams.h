// The three streams that a program is started with: open, whatever the caller did, and their failures told.
#pragma once

#include <string>

namespace osdn {

/// Descriptors 0 to 2 that the caller closed become /dev/null; writing a result to such an output fails.
/// Otherwise the next file that is opened would get the number, and messages would be written into it. Before
/// any file is opened.
void open_standard_streams();

/// Writes out what standard output still holds. Why not all that was ever written to it arrived, or nothing.
std::string finish_standard_output();

}  // namespace osdn
