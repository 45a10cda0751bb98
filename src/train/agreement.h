// What the ranks of a job settle before the first step: rank 0 decides, the others follow or say what
// differs.
#pragma once

#include <functional>
#include <string>

#include "base/json.h"
#include "dist/communicator.h"

namespace osdn::train {

/// Rank 0 computes, every rank receives. What `compute` throws on rank 0 is thrown by all, with its kind.
Json from_rank_0(dist::Communicator& communicator, const char* what, const std::function<Json()>& compute);

/// Throws a UserError on the ranks whose text is not that of rank 0; `explain` gets rank 0's text.
void expect_same(dist::Communicator& communicator, const char* what, const std::string& own,
                 const std::function<std::string(const std::string& of_rank_0)>& explain);

}  // namespace osdn::train
