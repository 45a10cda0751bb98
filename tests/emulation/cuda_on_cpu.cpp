#include "tests/emulation/cuda_on_cpu.h"

#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <memory>

#include "tests/emulation/copies_and_barriers.h"
#include "tests/emulation/race_check.h"
#include "tests/emulation/tensor_cores.h"

EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

namespace osdn::emulation {
namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr int kMostWarps = 32;
// What threads meet at.
constexpr const char* kInstruction = "an instruction of warp";  // orders no memory
constexpr const char* kWarpBarrier = "__syncwarp of warp";
constexpr const char* kBarrier = "barrier";

struct Fiber {
  ucontext_t context;  // that it begins with
  jmp_buf place;       // where it goes on
  std::unique_ptr<char[]> stack;
  bool begun = false;
  bool finished = false;
  // What it waits for: that this is no longer what it was.
  const uint64_t* counter = nullptr;
  uint64_t value = 0;
  const char* what = nullptr;
  int number = 0;
};

/// A place where threads wait for each other, over and over.
struct Meeting {
  int arrived = 0;
  int threads = 0;             // that the first to arrive named
  const char* what = nullptr;  // and what it came for
  uint64_t generation = 0;
  races::Phase phase = {};
};

struct Block {
  std::vector<Fiber> fibers;
  int running = 0;  // threads that have not ended
  std::array<Meeting, kMostWarps> warps;
  std::array<Meeting, 16> barriers;  // 0: of all threads
  jmp_buf scheduler;
  const std::function<void()>* body = nullptr;
  int current = 0;
  std::string fault;
};
Block block;
std::array<Warp, kMostWarps> warps;

// Jumps: swapcontext would ask the operating system for its signals every time.
void yield() {
  if (_setjmp(block.fibers[block.current].place) == 0) _longjmp(block.scheduler, 1);
}
void let_run(Fiber& fiber) {
  if (_setjmp(block.scheduler) != 0) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  setcontext(&fiber.context);
}

void end_phase(Meeting& meeting) {
  meeting.arrived = 0;
  meeting.phase.reset();
  ++meeting.generation;
}

void enter() {
  (*block.body)();
  block.fibers[block.current].finished = true;
  --block.running;
  Meeting& of_all = block.barriers[0];
  if (of_all.arrived > 0 && of_all.arrived == block.running) end_phase(of_all);
  yield();
}

/// Waits until `threads` of them are here.
void meet(Meeting& meeting, int threads, const char* what, int number) {
  if (meeting.arrived == 0) {
    meeting.what = what;
    meeting.threads = threads;
  } else if (meeting.what != what) {
    fail("thread " + std::to_string(block.current) + " is at " + what + " " + std::to_string(number) +
         ", others of its warp at " + meeting.what);
  } else if (meeting.threads != threads && number != 0) {
    fail(std::string(what) + " " + std::to_string(number) + " for " + std::to_string(meeting.threads) +
         " threads and, by thread " + std::to_string(block.current) + ", for " + std::to_string(threads));
  }
  const bool orders = what != kInstruction;
  if (orders) races::arrive(meeting.phase);
  const races::Phase phase = meeting.phase;
  if (++meeting.arrived == threads)
    end_phase(meeting);
  else
    wait_while(meeting.generation, meeting.generation, what, number);
  if (orders) races::leave(phase);
}

std::string who_waits() {
  std::string text = "threads wait for ever:";
  for (size_t i = 0; i < block.fibers.size(); ++i) {
    const Fiber& fiber = block.fibers[i];
    if (fiber.finished) continue;
    const Fiber* before = i > 0 ? &block.fibers[i - 1] : nullptr;
    if (before != nullptr && !before->finished && before->what == fiber.what &&
        before->number == fiber.number)
      continue;  // the first of a row of them is named
    text += " from thread " + std::to_string(i) + " on at " + fiber.what + " " +
            std::to_string(fiber.number) + ";";
  }
  return text + " " + std::to_string(block.fibers.size() - block.running) + " have ended";
}

void prepare_fibers(int threads) {
  block.fibers.resize(threads);
  for (Fiber& fiber : block.fibers) {
    if (!fiber.stack) fiber.stack = std::make_unique<char[]>(kStackBytes);
    fiber.finished = false;
    fiber.begun = false;
    fiber.counter = nullptr;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }
}

}  // namespace

alignas(1024) unsigned char shared_memory[kSharedBytes];

Warp& warp() { return warps[threadIdx.x / 32]; }
void meet_warp() {
  const auto number = static_cast<int>(threadIdx.x / 32);
  meet(block.warps[number], 32, kInstruction, number);
}
void synchronize_warp() {
  const auto number = static_cast<int>(threadIdx.x / 32);
  meet(block.warps[number], 32, kWarpBarrier, number);
}
void meet_block() { meet(block.barriers[0], block.running, kBarrier, 0); }

void meet_at(int number, int threads) {
  if (number <= 0 || number >= static_cast<int>(block.barriers.size()) || threads <= 0 || threads % 32 != 0)
    fail("barrier " + std::to_string(number) + " for " + std::to_string(threads) + " threads");
  meet(block.barriers[number], threads, kBarrier, number);
}

void wait_while(const uint64_t& counter, uint64_t value, const char* what, int number) {
  Fiber& fiber = block.fibers[block.current];
  fiber.counter = &counter;
  fiber.value = value;
  fiber.what = what;
  fiber.number = number;
  yield();
  fiber.counter = nullptr;
}

void fail(const std::string& why) {
  block.fault = why;
  while (true) yield();
}

void begin_launch(const void* kernel) {
  races::begin_launch(kernel);
  for (const EmulatedIndex* index : {&threadIdx, &blockIdx, &blockDim, &gridDim})
    races::ignore(index, sizeof(*index));
  races::ignore(warps.data(), sizeof(warps));
  // The launch itself, which holds the arguments: it waits below on this stack.
  races::ignore(__builtin_frame_address(0), kStackBytes);
}

void run_block(const std::function<void()>& body, int threads) {
  if (threads % 32 != 0 || threads > kMostWarps * 32)
    throw KernelFault("a block of " + std::to_string(threads) + " threads");
  block.body = &body;
  block.warps.fill(Meeting());
  block.barriers.fill(Meeting());
  block.running = threads;
  block.fault.clear();
  forget_mbarriers();
  forget_products();
  prepare_fibers(threads);
  races::begin_block(threads);
  while (block.running > 0) {
    bool idle = true;
    for (int i = 0; i < threads; ++i) {
      Fiber& fiber = block.fibers[i];
      if (fiber.finished || (fiber.counter != nullptr && *fiber.counter == fiber.value)) continue;
      idle = false;
      block.current = i;
      threadIdx = {static_cast<unsigned>(i), 0, 0};
      races::resume(i, fiber.stack.get(), kStackBytes);
      let_run(fiber);
      races::suspend();
      if (!block.fault.empty()) throw KernelFault(block.fault);
    }
    if (idle) throw KernelFault(who_waits());
  }
}

}  // namespace osdn::emulation
