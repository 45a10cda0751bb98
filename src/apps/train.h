// `osdn train CONFIG`: trains, or resumes by itself.
#pragma once

namespace CLI {
class App;
}

namespace osdn::apps {

void add_train(CLI::App& root);

}  // namespace osdn::apps
