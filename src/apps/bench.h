// `osdn bench`: the benchmarks of the ops and of the training step, JSON lines.
#pragma once

namespace CLI {
class App;
}

namespace osdn::apps {

void add_bench(CLI::App& root);

}  // namespace osdn::apps
