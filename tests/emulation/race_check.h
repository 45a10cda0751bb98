// Finds accesses to the same memory that nothing orders, in kernels that run on the CPU (cuda_on_cpu.h): by
// what happens before what, as the instruction set guarantees it, not by how the fibers happened to take
// turns.
//
// The kernels are compiled with the compiler's hooks for thread sanitizers (instrumentation.cpp), so every
// access is seen; the emulated instructions say what they order and what goes on by itself. Agents of a block
// are its threads, the copies (cp.async) of each thread and the products (wgmma) of each warp: what an agent
// does is known to a thread once it has waited for it, or met somebody who knows. Of one block's two accesses
// one of which writes, the later must know of the earlier; what wgmma reads must besides have been written
// before a proxy fence that lies between. Blocks of a launch know nothing of each other. Shuffles and votes
// order no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace osdn::emulation {

/// A kernel that cannot go on: threads that wait for what never comes, instructions used as they may not be.
class KernelFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// While one lives, launches are checked.
class RaceCheck {
 public:
  RaceCheck();
  ~RaceCheck();
  RaceCheck(const RaceCheck&) = delete;
  RaceCheck& operator=(const RaceCheck&) = delete;

  /// What was found so far, once for each pair of places in the code: the kernel, block and threads, what
  /// they did and where, as far as addr2line tells.
  std::vector<std::string> faults() const;
};

namespace races {

/// What an agent or a barrier knows to be over: of each agent, all up to a time of its own.
struct Clock {
  std::vector<uint32_t> known;
  std::vector<uint32_t> fenced;  // of it, what a proxy fence has followed; empty: nothing

  void join(const Clock& other);
};

/// A phase of a barrier: threads add what they know, threads that have waited for it take it.
using Phase = std::shared_ptr<Clock>;

// By the emulation, outside of the fibers.
void begin_launch(const void* kernel);
void begin_block(int threads);
/// Memory of the emulation itself, and of the launch that waits for the block.
void ignore(const void* memory, size_t bytes);
/// The thread that goes on, and its stack.
void resume(int thread, const void* stack, size_t stack_bytes);
void suspend();

/// A phase that begins with what all knew who arrived before.
Phase following(const Phase& phase);

// By the thread that is running.
void arrive(Phase& phase);
void leave(const Phase& phase);
enum class Access : uint8_t { kRead, kWrite, kCopyRead, kCopyWrite, kProductRead };
void access(const void* address, size_t bytes, Access kind, const void* site);
/// A function that is not inlined, called from `caller`.
void enter_function(const void* caller);
void leave_function();
void commit_copies();
/// All but the last `pending` groups of this thread's copies are over.
void wait_for_copies(int pending);
/// The phase gets this thread's copies up to here once they are over, and what it knew when it last arrived
/// anywhere.
void arrive_after_copies(Phase& phase);
void proxy_fence();
void commit_products();
void wait_for_products(int pending);

}  // namespace races
}  // namespace osdn::emulation
