// `osdn report RUN...`: a page that compares runs.
#pragma once

namespace CLI {
class App;
}

namespace osdn::apps {

void add_report(CLI::App& root);

}  // namespace osdn::apps
