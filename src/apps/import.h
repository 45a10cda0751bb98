// `osdn import DIR`: a model directory of another program becomes a run with one checkpoint of its weights.
#pragma once

namespace CLI {
class App;
}

namespace osdn::apps {

void add_import(CLI::App& root);

}  // namespace osdn::apps
