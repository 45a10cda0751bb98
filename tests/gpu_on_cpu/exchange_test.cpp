// The exchange between GPUs of one host, and the collectives over NCCL beside it, on GPUs that are threads of
// this machine's CPU: what moves, what is waited for, and how it ends when a rank does.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "dist/communicator.h"
#include "dist/detail/c10d_communicator.h"
#include "dist/detail/peer_communicator.h"
#include "tensor/device.h"
#include "tensor/device_graph.h"
#include "tests/dist/exchange_rounds.h"
#include "tests/dist/replays.h"
#include "tests/gpu_on_cpu/streams.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

namespace osdn::dist {
namespace exchange_test {

using gpu_on_cpu::behaviour;
using std::chrono::milliseconds;

constexpr milliseconds kEnough{60000};
constexpr milliseconds kShort{3000};  // for what never comes; beginnings on a busy machine end within it

std::unique_ptr<Communicator> join(int rank, int world_size, int port, milliseconds timeout,
                                   int64_t scratch = int64_t{1} << 16) {
  use_gpu(rank);
  const at::Device gpu(at::kPrivateUse1, static_cast<at::DeviceIndex>(rank));
  auto over_nccl =
      detail::make_c10d_communicator(test::rank_on_loopback(rank, world_size, port), gpu,
                                     std::chrono::ceil<std::chrono::seconds>(timeout), /*first_sum=*/4096);
  return detail::make_peer_communicator(std::move(over_nccl), {.timeout = timeout, .scratch = scratch});
}

at::Tensor on_gpu(Communicator& group, int64_t elements, double value = 1.0) {
  return at::full({elements}, value, at::TensorOptions().device(group.device()));
}

/// Of ranks that all come to a good end.
void check_done(std::vector<test::RankResult> results) {
  for (const test::RankResult& result : results) {
    INFO(results.size() << " ranks: " << result.text);
    CHECK(result.exit_code == 0);
    CHECK(result.text == "done");
  }
}

/// A rank that ends as the failure of another makes it, with a message that begins so.
void check_ended(const test::RankResult& result, const std::string& begin) {
  INFO("expected: " << begin << "\n  actual: " << result.text);
  CHECK(result.exit_code == static_cast<int>(ExitCode::kEnvironmentError));
  CHECK(result.text.rfind(begin, 0) == 0);
}

/// Whether /dev/shm names memory of this process.
bool has_named_page() {
  const std::string begin = fmt::format("osdn-{}-", ::getpid());
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    if (entry.path().filename().string().rfind(begin, 0) == 0) return true;
  return false;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace exchange_test

TEST_CASE("sums by copy engines are those of the ranks' order, bit by bit, whoever is late",
          "[exchange][dist]") {
  namespace t = exchange_test;
  for (const int world : {2, 3, 4}) {
    const int port = test::free_port();
    test::Ranks ranks(world, [&](int rank) -> std::string {
      t::behaviour().longest_delay = 300;
      // Scratch for a tenth of what a rank adds.
      const auto group = t::join(rank, world, port, t::kEnough, 10000);
      const std::string result = test::exchange_rounds(*group, 100000 * (world - 1) / world * world);
      if (t::behaviour().raised_twice != 0) return "a flag was raised twice before it was taken down";
      return result;
    });
    t::check_done(ranks.wait_all());
  }
}

TEST_CASE("many collectives queued at once keep their order and their numbers", "[exchange][dist]") {
  namespace t = exchange_test;
  constexpr int kWorld = 3;
  const int port = test::free_port();
  test::Ranks ranks(kWorld, [&](int rank) -> std::string {
    t::behaviour().longest_delay = 200;
    const auto group = t::join(rank, kWorld, port, t::kEnough);
    const at::Tensor values = t::on_gpu(*group, 6 * kWorld, 0.0);
    if (!group->share({values})) return "not shared";
    if (t::has_named_page())
      return "shared memory has a name that the end of this process would leave behind";
    // Every bucket is summed, then gathered, then summed everywhere, without the host waiting for anything.
    for (int step = 1; step <= 40; ++step) {
      std::vector<std::unique_ptr<PendingCollective>> pending;
      values.fill_(static_cast<double>(rank + step));
      for (int bucket = 0; bucket < 6; ++bucket)
        pending.push_back(group->start({.kind = CollectiveKind::kReduceScatter,
                                        .range = values.narrow(0, bucket * kWorld, kWorld),
                                        .root = 0,
                                        .what = "gradients"}));
      for (const auto& sum : pending) sum->wait();
      group->all_gather(values.narrow(0, 0, 3 * kWorld), "no sums, for the parts are not where it looks");
      group->all_reduce_sum(values.narrow(0, 0, kWorld), "sums");
      values.zero_();
    }
    values.fill_(static_cast<double>(rank + 1));
    group->all_reduce_sum(values, "the last");
    group->check();
    if (t::behaviour().raised_twice != 0) return "a flag was raised twice before it was taken down";
    return values.eq(6).all().item<bool>() ? "done" : "a wrong sum";
  });
  t::check_done(ranks.wait_all());
}

TEST_CASE(
    "exchanges in a captured graph run at every replay, and one that does not end is named on all ranks",
    "[exchange][dist]") {
  namespace t = exchange_test;
  for (const int world : {2, 4}) {
    const int port = test::free_port();
    const auto start = std::chrono::steady_clock::now();
    test::Ranks ranks(world, [&](int rank) -> std::string {
      t::behaviour().longest_delay = 200;
      const auto group = t::join(rank, world, port, t::kShort);
      const at::Tensor gradients = t::on_gpu(*group, 3000 * world, 0.0);
      const at::Tensor weights = at::zeros_like(gradients);
      if (!group->share({gradients, weights})) return "not shared";
      return test::replays_until_one_stops(*group, gradients, weights);
    });
    bool timed_out = false;
    for (int rank = 0; rank < world; ++rank) {
      if (rank == 1) continue;
      const test::RankResult result = ranks.wait(rank);
      t::check_ended(
          result,
          fmt::format("rank {} of {}, step 4: reduce_scatter of gradients of bucket 0: ", rank, world));
      timed_out = timed_out || result.text.find(": not finished within 3 s") != std::string::npos;
    }
    CHECK(timed_out);
    CHECK(t::seconds_since(start) < 20);
  }
}

TEST_CASE("an exchange with a rank that is stopped or dead ends on all others by time-out, with its name",
          "[exchange][dist]") {
  namespace t = exchange_test;
  const int signal = GENERATE(SIGSTOP, SIGKILL);
  for (const int world : {2, 3}) {
    CAPTURE(signal, world);
    const int port = test::free_port();
    const auto start = std::chrono::steady_clock::now();
    test::Ranks ranks(world, [&](int rank) -> std::string {
      const auto group = t::join(rank, world, port, t::kShort);
      const at::Tensor gradients = t::on_gpu(*group, 1000 * world);
      if (!group->share({gradients})) return "not shared";
      group->all_reduce_sum(gradients, "warm-up");
      group->to_host(gradients.sum());
      if (rank == 1) ::raise(signal);
      group->set_step(5);
      for (int bucket = 3; bucket < 6; ++bucket)
        group->reduce_scatter(gradients, "gradients of bucket " + std::to_string(bucket));
      return "not noticed: " + std::to_string(group->to_host(gradients).sum().item<double>());
    });
    for (int rank = 0; rank < world; ++rank)
      if (rank != 1)
        t::check_ended(
            ranks.wait(rank),
            fmt::format("rank {} of {}, step 5: reduce_scatter of gradients of bucket 3: ", rank, world));
    CHECK(t::seconds_since(start) < 20);
  }
}

TEST_CASE("a rank that fails between two collectives ends the others at once, before their time-out",
          "[exchange][dist]") {
  namespace t = exchange_test;
  constexpr int kWorld = 3;
  const int port = test::free_port();
  const auto start = std::chrono::steady_clock::now();
  test::Ranks ranks(kWorld, [&](int rank) -> std::string {
    const auto group = t::join(rank, kWorld, port, t::kEnough);
    const at::Tensor gradients = t::on_gpu(*group, 1000 * kWorld);
    if (!group->share({gradients})) return "not shared";
    group->set_step(7);
    for (int bucket = 0; bucket < 3; ++bucket) {
      if (rank == 1 && bucket == 1) throw UserError("a failure of its own");
      group->reduce_scatter(gradients, "gradients of bucket " + std::to_string(bucket));
    }
    return "not noticed: " + std::to_string(group->to_host(gradients).sum().item<double>());
  });
  const std::vector<test::RankResult> results = ranks.wait_all();
  CHECK(results[1].text == "a failure of its own");
  CHECK(results[1].exit_code == static_cast<int>(ExitCode::kUserError));
  for (const int rank : {0, 2})
    t::check_ended(
        results[static_cast<size_t>(rank)],
        fmt::format("rank {} of 3, step 7: reduce_scatter of gradients of bucket 1: rank 1 has failed",
                    rank));
  CHECK(t::seconds_since(start) < 20);
}

TEST_CASE("what a rank sends on after its time-out is taken for a sum by nobody", "[exchange][dist]") {
  namespace t = exchange_test;
  constexpr int kWorld = 3;
  const int port = test::free_port();
  test::Ranks ranks(kWorld, [&](int rank) -> std::string {
    const auto group = t::join(rank, kWorld, port, t::kShort);
    const at::Tensor gradients = t::on_gpu(*group, 1000 * kWorld);
    if (!group->share({gradients})) return "not shared";
    group->all_reduce_sum(gradients, "warm-up");
    group->to_host(gradients.sum());
    // Rank 0 gives up before rank 1 comes, rank 2 has time left.
    if (rank == 1) std::this_thread::sleep_for(t::milliseconds(4300));
    if (rank == 2) std::this_thread::sleep_for(t::milliseconds(2600));
    gradients.fill_(1.0);
    group->set_step(9);
    group->all_reduce_sum(gradients, "gradients");
    return "taken for good: " + std::to_string(group->to_host(gradients).sum().item<double>());
  });
  const std::vector<test::RankResult> results = ranks.wait_all();
  t::check_ended(results[0], "rank 0 of 3, step 9: all_reduce_sum of gradients: not finished within 3 s");
  for (const int rank : {1, 2})
    t::check_ended(results[static_cast<size_t>(rank)], fmt::format("rank {} of 3, step 9", rank));
}

TEST_CASE("a capture that begins while an exchange hangs ends by its time-out", "[exchange][dist]") {
  namespace t = exchange_test;
  const int port = test::free_port();
  const auto start = std::chrono::steady_clock::now();
  test::Ranks ranks(2, [&](int rank) -> std::string {
    const auto group = t::join(rank, 2, port, t::kShort);
    const at::Tensor gradients = t::on_gpu(*group, 2000);
    if (!group->share({gradients})) return "not shared";
    if (rank == 1) ::raise(SIGSTOP);
    group->set_step(2);
    group->all_reduce_sum(gradients, "gradients");
    const int64_t recording = group->begin_recording();
    DeviceGraph graph;
    graph.record([&] { group->all_reduce_sum(gradients, "gradients of the graph"); });
    graph.replay();
    group->watch_replay(recording);
    return "not noticed: " + std::to_string(group->to_host(gradients).sum().item<double>());
  });
  t::check_ended(ranks.wait(0), "rank 0 of 2, step 2: all_reduce_sum of gradients: not finished within 3 s");
  CHECK(t::seconds_since(start) < 20);
}

TEST_CASE("ranks of which one cannot export memory or reach another all leave it to NCCL",
          "[exchange][dist]") {
  namespace t = exchange_test;
  const bool exports = GENERATE(true, false);
  CAPTURE(exports);
  constexpr int kWorld = 3;
  const int port = test::free_port();
  test::Ranks ranks(kWorld, [&](int rank) -> std::string {
    if (rank == 2) (exports ? t::behaviour().reaches_others : t::behaviour().exports_memory) = false;
    const auto group = t::join(rank, kWorld, port, t::kEnough);
    const at::Tensor gradients = t::on_gpu(*group, 1000 * kWorld, rank + 1.0);
    if (group->share({gradients})) return "shared";
    group->all_reduce_sum(gradients, "gradients");
    return gradients.eq(6).all().item<bool>() ? test::all_collectives(*group) : "a wrong sum";
  });
  t::check_done(ranks.wait_all());
}

TEST_CASE("links that change what is copied are found before anything is exchanged", "[exchange][dist]") {
  namespace t = exchange_test;
  const int port = test::free_port();
  test::Ranks ranks(2, [&](int rank) -> std::string {
    t::behaviour().corrupts_copies = rank == 1;
    const auto group = t::join(rank, 2, port, t::kEnough);
    group->share({t::on_gpu(*group, 1000)});
    return "shared";
  });
  for (const int rank : {0, 1})
    t::check_ended(
        ranks.wait(rank),
        fmt::format("rank {} of 2: a first sum of 1048576 numbers over the copy engines of the GPUs is "
                    "wrong (rank ",
                    rank));
}

}  // namespace osdn::dist
