// `osdn prepare`: text to token shards, from a configuration or from options.
#pragma once

namespace CLI {
class App;
}

namespace osdn::apps {

void add_prepare(CLI::App& root);

}  // namespace osdn::apps
