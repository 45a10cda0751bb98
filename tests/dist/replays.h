// Collectives in a captured graph between GPUs, whichever way they go.
#pragma once

#include <csignal>
#include <string>

#include "dist/communicator.h"
#include "tensor/device.h"
#include "tensor/device_graph.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

namespace osdn::test {

/// GPUs of this machine. Asked in a process of its own: one that has spoken to the driver must not fork ranks
/// that do.
inline int visible_gpus() {
  Ranks one(1, [](int) { return std::to_string(num_gpus()); });
  return std::stoi(one.wait(0).text);
}

/// A rank of W: records sums of gradients [W P] and what is gathered of them in weights [W P], replays it
/// three times against what it must give, and once more when rank 1 has stopped. Returns what went wrong.
inline std::string replays_until_one_stops(dist::Communicator& group, const at::Tensor& gradients,
                                           const at::Tensor& weights) {
  const int64_t part = weights.numel() / group.world_size();
  const int64_t sum_of_ranks = group.world_size() * (group.world_size() + 1) / 2;
  DeviceGraph graph;
  const auto work = [&] {
    const auto sums = group.start({.kind = dist::CollectiveKind::kReduceScatter,
                                   .range = gradients,
                                   .root = 0,
                                   .what = "gradients of bucket 0"});
    sums->wait();
    weights.narrow(0, group.rank() * part, part).copy_(gradients.narrow(0, group.rank() * part, part));
    group.all_gather(weights, "weights of bucket 0");
  };
  work();
  const int64_t recording = group.begin_recording();
  graph.record(work);
  for (int64_t step = 1; step <= 3; ++step) {
    group.set_step(step);
    gradients.fill_(static_cast<double>(step * (group.rank() + 1)));
    weights.fill_(-1.0);
    graph.replay();
    group.watch_replay(recording);
    if (!weights.eq(static_cast<double>(step * sum_of_ranks)).all().item<bool>())
      return "wrong sums in replay " + std::to_string(step);
    group.check();
  }
  group.barrier("replays");
  if (group.rank() == 1) ::raise(SIGSTOP);
  group.set_step(4);
  graph.replay();
  group.watch_replay(recording);
  const double sum = group.to_host(weights.sum()).item<double>();
  return "not noticed: " + std::to_string(sum);
}

}  // namespace osdn::test
