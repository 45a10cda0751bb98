// What `osdn --version` prints.
#pragma once

#include <string>

namespace osdn::apps {

/// Version and commit of the program, then the libraries it runs with, one a line.
std::string version_text();

}  // namespace osdn::apps
