// `osdn config check | print | reference`: validates a configuration, shows the effective one, prints
// docs/config.md.
#pragma once

namespace CLI {
class App;
}

namespace osdn::apps {

void add_config(CLI::App& root);

}  // namespace osdn::apps
