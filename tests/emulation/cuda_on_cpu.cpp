#include "tests/emulation/cuda_on_cpu.h"

#include <ucontext.h>

#include <memory>

EmulatedIndex threadIdx, blockIdx, blockDim;

namespace osdn::emulation {
namespace {

constexpr size_t kStackBytes = 256 * 1024;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool finished = false;
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
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
    while (generation == own) yield();
  }
}

}  // namespace

alignas(1024) unsigned char shared_memory[kSharedBytes];

Warp& warp() { return block.warps[threadIdx.x / 32]; }
void meet_warp() { meet(warp().arrived, warp().generation, 32); }
void meet_block() { meet(block.arrived, block.generation, static_cast<int>(block.fibers.size())); }

void let_others_run() { yield(); }

void run_block(const std::function<void()>& body, int threads) {
  block.body = &body;
  block.arrived = 0;
  block.warps.assign(threads / 32, Warp());
  block.fibers.resize(threads);
  for (Fiber& fiber : block.fibers) {
    if (!fiber.stack) fiber.stack = std::make_unique<char[]>(kStackBytes);
    fiber.finished = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }
  for (int left = threads; left > 0;) {
    for (int i = 0; i < threads; ++i) {
      if (block.fibers[i].finished) continue;
      block.current = i;
      threadIdx = {static_cast<unsigned>(i), 0, 0};
      swapcontext(&block.scheduler, &block.fibers[i].context);
      if (block.fibers[i].finished) --left;
    }
  }
}

}  // namespace osdn::emulation
