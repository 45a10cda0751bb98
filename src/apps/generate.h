// `osdn generate CHECKPOINT`: continues prompts by recurrent decoding.
#pragma once

namespace CLI {
class App;
}

namespace osdn::apps {

void add_generate(CLI::App& root);

}  // namespace osdn::apps
