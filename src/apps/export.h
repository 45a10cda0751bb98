// `osdn export CHECKPOINT`: a model directory that the format's own programs load.
#pragma once

namespace CLI {
class App;
}

namespace osdn::apps {

void add_export(CLI::App& root);

}  // namespace osdn::apps
