// What every collective must give, on any backend.
#pragma once

#include <string>

#include "base/error.h"
#include "dist/communicator.h"
#include "tests/support/test.h"

namespace osdn::test {

inline void expect_collective(bool condition, const char* what) {
  if (!condition) throw InternalError("{}", what);
}

/// Every collective of a rank, against what it must give.
inline std::string all_collectives(dist::Communicator& group) {
  const int64_t world = group.world_size();
  const int64_t rank = group.rank();
  const at::TensorOptions on_device = at::TensorOptions().device(group.device());
  const double sum_of_ranks = static_cast<double>(world * (world - 1)) / 2;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
    at::Tensor range = at::full({3 * world}, rank, on_device.dtype(type));
    group.all_reduce_sum(range, "sums");
    expect_collective(range.eq(sum_of_ranks).all().item<bool>(), "all_reduce_sum");
    range.fill_(rank);
    group.all_reduce_max(range, "maxima");
    expect_collective(range.eq(world - 1).all().item<bool>(), "all_reduce_max");
    at::Tensor scattered = at::arange(2 * world, on_device.dtype(at::kDouble)).to(type) * (rank + 1);
    group.reduce_scatter(scattered, "parts");
    const at::Tensor own = at::arange(2 * world, on_device.dtype(at::kDouble)).narrow(0, 2 * rank, 2) *
                           (sum_of_ranks + static_cast<double>(world));
    expect_collective(scattered.narrow(0, 2 * rank, 2).to(at::kDouble).equal(own), "reduce_scatter");
  }
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kByte}) {
    at::Tensor range = at::zeros({2 * world}, on_device.dtype(type));
    range.narrow(0, 2 * rank, 2).fill_(rank + 1);
    group.all_gather(range, "weights");
    const at::Tensor expected =
        at::arange(1, world + 1, on_device.dtype(at::kLong)).repeat_interleave(2).to(type);
    expect_collective(range.equal(expected), "all_gather");
    range.fill_(rank);
    group.broadcast(range, world - 1, "the last one's");
    expect_collective(range.eq(world - 1).all().item<bool>(), "broadcast");
  }
  expect_collective(group.broadcast_text(rank == 0 ? "from 0" : "ignored", "a text") == "from 0",
                    "broadcast_text");
  group.barrier("the end");
  return "done";
}

}  // namespace osdn::test
