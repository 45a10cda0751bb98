// The ranks that write one checkpoint together: rank 0 stages the directory and gives it its name once the
// files of all are durable.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "dist/board.h"

namespace osdn::checkpoint {

struct Team {
  int64_t rank = 0;
  int64_t world_size = 1;
  std::shared_ptr<dist::Board> board;  // of this writer alone; none for a world of one
  std::chrono::seconds timeout{600};   // for the others, once this rank has done its share
};

}  // namespace osdn::checkpoint
