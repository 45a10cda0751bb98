// `osdn eval`: how well a trained model does on a suite.
#pragma once

namespace CLI {
class App;
}

namespace osdn::apps {

void add_eval(CLI::App& root);

}  // namespace osdn::apps
