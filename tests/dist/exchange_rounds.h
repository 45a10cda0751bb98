// What ranks exchange by copy engines, against the same on the CPU.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <thread>

#include "dist/communicator.h"
#include "tests/dist/collectives.h"
#include "tests/support/test.h"

namespace osdn::test {

/// What a rank brings, the same numbers wherever they are asked for.
inline at::Tensor values_of(int64_t rank, int64_t round, int64_t n) {
  return at::randn({n}, at::detail::createCPUGenerator(static_cast<uint64_t>(rank * 1000 + round))) *
         std::pow(10.0, static_cast<double>(rank % 3));
}

/// The sum of all ranks' values as their order makes it, [n] fp32.
inline at::Tensor sum_in_order(int64_t world_size, int64_t round, int64_t n) {
  at::Tensor sum = values_of(0, round, n);
  for (int64_t rank = 1; rank < world_size; ++rank) sum += values_of(rank, round, n);
  return sum;
}

/// A rank: sums and gathers of ranges of shared memory against the same on the CPU, bit by bit; ranks are
/// late in turn. Returns "done" or what is wrong.
inline std::string exchange_rounds(dist::Communicator& group, int64_t largest) {
  const int64_t rank = group.rank();
  const int64_t world = group.world_size();
  constexpr int64_t kPadding = 64;
  const at::TensorOptions on_device = at::TensorOptions().device(group.device());
  at::Tensor gradients = at::empty({largest + kPadding}, on_device.dtype(at::kFloat));
  at::Tensor weights = at::empty({largest + kPadding}, on_device.dtype(at::kBFloat16));
  if (!group.share({gradients, weights})) return "not shared";
  const double kNan = std::numeric_limits<double>::quiet_NaN();
  int64_t round = 0;
  for (const int64_t size : {world, 5 * world, int64_t{1000} * world, largest / world * world}) {
    for (int64_t repeat = 0; repeat < 4; ++repeat, ++round) {
      if (round % world == rank) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gradients.fill_(kNan);
      weights.fill_(kNan);
      const at::Tensor range = gradients.narrow(0, kPadding / 2, size);
      const at::Tensor own = values_of(rank, round, size);
      const at::Tensor expected = sum_in_order(world, round, size);
      range.copy_(own);
      const auto scattered = group.start(
          {.kind = dist::CollectiveKind::kReduceScatter, .range = range, .root = 0, .what = "gradients"});
      scattered->wait();
      const int64_t part = size / world;
      const at::Tensor sum = range.narrow(0, rank * part, part);
      if (!sum.cpu().equal(expected.narrow(0, rank * part, part)))
        return fmt::format("reduce_scatter of {} in round {}", size, round);
      // What is gathered hangs on the sum, as weights do on gradients.
      const at::Tensor gathered = weights.narrow(0, kPadding / 2, size);
      gathered.narrow(0, rank * part, part).copy_(sum);
      group.all_gather(gathered, "weights");
      range.copy_(own);
      group.all_reduce_sum(range, "gradients");
      if (!gathered.cpu().equal(expected.to(at::kBFloat16)))
        return fmt::format("all_gather of {} in round {}", size, round);
      if (!range.cpu().equal(expected)) return fmt::format("all_reduce of {} in round {}", size, round);
      if (!gradients.narrow(0, 0, kPadding / 2).isnan().all().item<bool>() ||
          !gradients.narrow(0, kPadding / 2 + size, kPadding / 2).isnan().all().item<bool>())
        return fmt::format("more than the range was written in round {}", round);
    }
  }
  // Sums that the ranks cannot share out evenly, of which some have no part at all.
  for (const int64_t size : {int64_t{1}, 2 * world + 1}) {
    const at::Tensor odd = gradients.narrow(0, 3, size);
    odd.copy_(values_of(rank, round, size));
    group.all_reduce_sum(odd, "gradients of the full-precision parameters");
    if (!odd.cpu().equal(sum_in_order(world, round, size))) return fmt::format("all_reduce of {}", size);
  }
  group.check();
  return all_collectives(group);
}

}  // namespace osdn::test
