// `osdn bench exchange CONFIG`: what the exchange between ranks costs a training step.
#pragma once

namespace CLI {
class App;
}

namespace osdn::apps {

void add_bench_exchange(CLI::App& bench);

}  // namespace osdn::apps
