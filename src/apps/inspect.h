// `osdn inspect PATH`: what a shard, checkpoint or run directory is, and whether it is intact.
#pragma once

namespace CLI {
class App;
}

namespace osdn::apps {

void add_inspect(CLI::App& root);

}  // namespace osdn::apps
