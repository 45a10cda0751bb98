#include "tensor/peers.h"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "base/error.h"
#include "tensor/device.h"
#include "tensor/device_graph.h"
#include "tensor/device_mark.h"
#include "tests/support/test.h"

namespace osdn {
namespace peers_test {

/// Flags in a page of this process.
struct Page {
  static constexpr size_t kBytes = 4096;
  Page() : flags(static_cast<uint32_t*>(std::aligned_alloc(kBytes, kBytes))) {
    for (size_t i = 0; i < kBytes / sizeof(uint32_t); ++i) flags[i] = 0;
  }
  ~Page() { std::free(flags); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  uint32_t read(size_t flag) const { return __atomic_load_n(flags + flag, __ATOMIC_ACQUIRE); }
  uint32_t* flags;
};

}  // namespace peers_test

TEST_CASE("without a GPU there is a reason why GPUs cannot exchange", "[peers]") {
  CHECK(no_peers_reason().empty() == (num_gpus() > 0));
}

TEST_CASE("a stream waits for a flag that another stream or the host raises, and takes it down",
          "[peers][cuda]") {
  REQUIRE(no_peers_reason().empty());
  CHECK(can_reach_gpu(gpu_address()));
  CHECK(!can_reach_gpu("ffff:ff:1f.0"));
  const peers_test::Page page;
  DeviceFlags flags(page.flags, peers_test::Page::kBytes);
  SideStream side;
  at::Tensor value = at::ones({1}, at::kCUDA);
  // The first use of a kernel, and of memory, may wait for the device: not while it waits for a flag.
  value.fill_(5);
  side.run([&] { value.add_(1); });
  CHECK(value.item<float>() > 0);
  synchronize(value.device());
  std::unique_ptr<DeviceMark> end;
  side.run([&] {
    flags.await(3);
    value.add_(1);
    end = std::make_unique<DeviceMark>();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(!end->reached());
  value.fill_(10);
  flags.raise({2, 3});
  end->delay_current_stream();
  CHECK(value.item<float>() == 11);
  CHECK(page.read(2) == 1);
  CHECK(page.read(3) == 0);
  side.run([&] {
    flags.await(5);
    end = std::make_unique<DeviceMark>();
  });
  __atomic_store_n(page.flags + 5, 1u, __ATOMIC_RELEASE);
  synchronize(value.device());
  CHECK(end->reached());
  CHECK(page.read(5) == 0);
}

TEST_CASE("flags and copies recorded in a graph work at every replay", "[peers][cuda]") {
  const peers_test::Page page;
  DeviceFlags flags(page.flags, peers_test::Page::kBytes);
  SideStream side;
  at::Tensor from = at::zeros({1000}, at::kCUDA);
  at::Tensor to = at::zeros({1000}, at::kCUDA);
  DeviceGraph graph;
  graph.capture([&] {
    const DeviceMark begin;
    std::unique_ptr<DeviceMark> end;
    from.add_(1);
    flags.raise({0});
    side.run([&] {
      begin.delay_current_stream();
      flags.await(0);
      copy_memory(to.data_ptr(), from.const_data_ptr(), from.nbytes());
      end = std::make_unique<DeviceMark>();
    });
    end->delay_current_stream();
  });
  synchronize(from.device());
  const float before = from[0].item<float>();
  for (int replay = 1; replay <= 3; ++replay) {
    graph.replay();
    CHECK(to.eq(before + static_cast<float>(replay)).all().item<bool>());
    CHECK(page.read(0) == 0);
  }
}

}  // namespace osdn
