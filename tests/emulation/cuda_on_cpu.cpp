#include "tests/emulation/cuda_on_cpu.h"

#include <ucontext.h>

#include <array>
#include <memory>

EmulatedIndex threadIdx, blockIdx, blockDim;

namespace osdn::emulation {
namespace {

constexpr size_t kStackBytes = 256 * 1024;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool finished = false;
  // Where it waits: until that is no longer what it was.
  const uint64_t* generation = nullptr;
  uint64_t waiting_since = 0;
};

/// A barrier of some of a block's threads: how many the first of a phase named, how many are there.
struct NamedBarrier {
  int threads = 0;
  int arrived = 0;
  uint64_t generation = 0;
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::array<NamedBarrier, 16> barriers;
  ucontext_t scheduler;
  const std::function<void()>* body = nullptr;
  int current = 0;
  int arrived = 0;
  uint64_t generation = 0;
};
Block block;

void yield() {
  const int self = block.current;
  swapcontext(&block.fibers[self].context, &block.scheduler);
}

void enter() {
  (*block.body)();
  block.fibers[block.current].finished = true;
  yield();
}

/// Waits until `count` fibers are here.
void meet(int& arrived, uint64_t& generation, int count) {
  const uint64_t own = generation;
  if (++arrived == count) {
    arrived = 0;
    ++generation;
  } else {
    Fiber& fiber = block.fibers[block.current];
    fiber.generation = &generation;
    fiber.waiting_since = own;
    yield();
    fiber.generation = nullptr;
  }
}

}  // namespace

alignas(1024) unsigned char shared_memory[kSharedBytes];

Warp& warp() { return block.warps[threadIdx.x / 32]; }
void meet_warp() { meet(warp().arrived, warp().generation, 32); }
void meet_block() { meet(block.arrived, block.generation, static_cast<int>(block.fibers.size())); }

void meet_at(int number, int threads) {
  NamedBarrier& barrier = block.barriers.at(number);
  if (number == 0 || threads <= 0 || threads % 32 != 0) std::abort();
  if (barrier.arrived == 0) barrier.threads = threads;
  if (barrier.threads != threads) std::abort();
  meet(barrier.arrived, barrier.generation, threads);
}

void let_others_run() { yield(); }

void run_block(const std::function<void()>& body, int threads) {
  block.body = &body;
  block.arrived = 0;
  block.warps.assign(threads / 32, Warp());
  block.barriers.fill(NamedBarrier());
  block.fibers.resize(threads);
  for (Fiber& fiber : block.fibers) {
    if (!fiber.stack) fiber.stack = std::make_unique<char[]>(kStackBytes);
    fiber.finished = false;
    fiber.generation = nullptr;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }
  for (int left = threads; left > 0;) {
    bool idle = true;
    for (int i = 0; i < threads; ++i) {
      const Fiber& fiber = block.fibers[i];
      if (fiber.finished || (fiber.generation != nullptr && *fiber.generation == fiber.waiting_since))
        continue;
      idle = false;
      block.current = i;
      threadIdx = {static_cast<unsigned>(i), 0, 0};
      swapcontext(&block.scheduler, &block.fibers[i].context);
      if (block.fibers[i].finished) --left;
    }
    if (idle) std::abort();  // all wait for one that never comes
  }
}

}  // namespace osdn::emulation
