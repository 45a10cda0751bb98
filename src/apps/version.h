// `osdn version` and `osdn --version`: the program, its commit and the libraries it runs with.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace osdn::apps {

/// Version and commit of the program, then the libraries it runs with, one a line.
std::string version_text();

void add_version(CLI::App& root);

}  // namespace osdn::apps
