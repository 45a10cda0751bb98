// Runs the registered benchmarks: a JSON line a case on standard output.
#pragma once

#include <string>
#include <vector>

#include "tensor/fwd.h"

namespace osdn::bench {

/// Which cases; an empty list or string stands for all.
struct Selection {
  std::vector<std::string> ops;
  std::vector<std::string> shapes;  // parts of the case's shape, any of them
  std::string gate;
  std::string write_key;
  std::string pass;
};

/// True when every case passed its check. Throws UserError for an op that does not exist and where no case is
/// left, EnvironmentError in a build without benchmarks.
bool run(const Selection& selection, at::Device device);

}  // namespace osdn::bench
