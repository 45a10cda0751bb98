// `osdn tokenizer train|encode|decode`.
#pragma once

namespace CLI {
class App;
}

namespace osdn::apps {

void add_tokenizer(CLI::App& root);

}  // namespace osdn::apps
