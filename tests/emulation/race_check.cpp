#include "tests/emulation/race_check.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "tests/emulation/code_places.h"
#include "tests/emulation/cuda_on_cpu.h"
#include "tests/emulation/shadow_memory.h"

extern "C" {
// The program's image in memory, by the linker.
extern const char __executable_start;
extern const char end;
}

namespace osdn::emulation {
namespace races {
namespace {

constexpr size_t kMostFaults = 10;

struct ThreadState {
  Clock clock;
  std::vector<uint32_t> committed;  // times of the copies in each group
  uint32_t copy_time = 1;           // of copies queued now
  uint32_t product_time = 1;
  uint32_t calls = 0;  // CallChains
};

struct Range {
  uintptr_t begin;
  size_t bytes;
  bool has(uintptr_t address) const { return address - begin < bytes; }
};

/// Memory that is a block's own: what an earlier block left there is not there any more.
bool of_block(uintptr_t address) {
  const auto start = reinterpret_cast<uintptr_t>(&__executable_start);
  return address - start < reinterpret_cast<uintptr_t>(&end) - start;
}

void join(std::vector<uint32_t>& into, const std::vector<uint32_t>& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

bool reached(const std::vector<uint32_t>& times, const Epoch& epoch) {
  return epoch.agent < times.size() && times[epoch.agent] >= epoch.time;
}

bool writes(Access kind) { return kind == Access::kWrite || kind == Access::kCopyWrite; }

class Checker {
 public:
  std::vector<std::string> faults;

  void begin_launch(const void* kernel) {
    kernel_ = kernel;
    ignored.clear();
    first_block_ = block_ + 1;
  }

  void begin_block(int threads) {
    ++block_;
    shadow_.begin_block();
    num_threads_ = threads;
    threads_.assign(threads, ThreadState());
    for (int i = 0; i < threads; ++i) {
      threads_[i].clock.known.assign(2 * threads + threads / 32, 0);
      threads_[i].clock.known[i] = 1;
    }
  }

  void arrive(Phase& phase) {
    if (!phase) phase = std::make_shared<Clock>();
    phase->join(now().clock);
    tick();
  }

  void leave(const Phase& phase) {
    if (phase) now().clock.join(*phase);
  }

  void arrive_after_copies(Phase& phase) {
    Clock over = now().clock;
    over.known[current] -= 1;  // what it did since it last arrived is not the copies' to tell
    over.known[copier()] = now().copy_time++;
    if (!phase) phase = std::make_shared<Clock>();
    phase->join(over);
  }

  void commit_copies() { now().committed.push_back(now().copy_time++); }

  void wait_for_copies(size_t pending) {
    const std::vector<uint32_t>& committed = now().committed;
    uint32_t& known = now().clock.known[copier()];
    if (committed.size() > pending) known = std::max(known, committed[committed.size() - 1 - pending]);
  }

  void proxy_fence() {
    join(now().clock.fenced, now().clock.known);
    tick();
  }

  void commit_products() { ++now().product_time; }

  void wait_for_products(uint32_t pending) {
    // Products queued at time i are group i.
    const uint32_t groups = now().product_time - 1;
    uint32_t& known = now().clock.known[multiplier()];
    if (groups > pending) known = std::max(known, groups - pending);
  }

  void enter_function(const void* caller) { now().calls = chains_.extend(now().calls, code_place(caller)); }
  void leave_function() { now().calls = chains_.caller(now().calls); }

  void access(uintptr_t address, size_t bytes, Access kind, const void* site) {
    const ThreadState& thread = now();
    Epoch epoch{.block = block_, .site = chains_.extend(thread.calls, code_place(site)), .kind = kind};
    if (kind == Access::kRead || kind == Access::kWrite) {
      epoch.agent = static_cast<uint16_t>(current);
      epoch.time = thread.clock.known[current];
    } else if (kind == Access::kProductRead) {
      epoch.agent = static_cast<uint16_t>(multiplier());
      epoch.time = thread.product_time;
    } else {
      epoch.agent = static_cast<uint16_t>(copier());
      epoch.time = thread.copy_time;
    }
    const bool own = of_block(address);
    for (uintptr_t at = address & ~(ShadowMemory::kCellBytes - 1); at < address + bytes;
         at += ShadowMemory::kCellBytes)
      access_cell(shadow_.at(at), at, epoch, thread.clock, own);
  }

  int current = -1;  // thread
  Range stack = {};
  std::vector<Range> ignored;

 private:
  ThreadState& now() { return threads_[current]; }
  void tick() { ++now().clock.known[current]; }
  int copier() const { return num_threads_ + current; }
  int multiplier() const { return 2 * num_threads_ + current / 32; }
  bool foreign(const Epoch& epoch) const { return epoch.block >= first_block_ && epoch.block != block_; }

  void access_cell(Cell& cell, uintptr_t address, const Epoch& epoch, const Clock& clock, bool own) {
    if (!own && foreign(cell.write)) report(cell.write, epoch, address, "another block of the launch");
    if (cell.write.block == block_) {
      if (!reached(clock.known, cell.write))
        report(cell.write, epoch, address, "nothing orders them");
      else if (epoch.kind == Access::kProductRead && !reached(clock.fenced, cell.write))
        report(cell.write, epoch, address, "no proxy fence lies between");
    }
    if (writes(epoch.kind))
      write_cell(cell, address, epoch, clock, own);
    else
      read_cell(cell, epoch, clock);
  }

  void write_cell(Cell& cell, uintptr_t address, const Epoch& epoch, const Clock& clock, bool own) {
    if (!own && foreign(cell.foreign_read))
      report(cell.foreign_read, epoch, address, "another block of the launch");
    if (!own && foreign(cell.read)) report(cell.read, epoch, address, "another block of the launch");
    if (cell.read.block == block_) {
      if (!reached(clock.known, cell.read)) report(cell.read, epoch, address, "nothing orders them");
      if (cell.more_reads != 0) {
        for (const Epoch& read : shadow_.reads(cell))
          if (!reached(clock.known, read)) report(read, epoch, address, "nothing orders them");
      }
    }
    cell.write = epoch;
    cell.read.block = 0;
    cell.more_reads = 0;
  }

  void read_cell(Cell& cell, const Epoch& epoch, const Clock& clock) {
    if (cell.read.block != block_) {
      if (cell.read.block != 0) cell.foreign_read = cell.read;
      cell.read = epoch;
      cell.more_reads = 0;
      return;
    }
    if (cell.read.agent == epoch.agent || reached(clock.known, cell.read)) {
      cell.read = epoch;
      return;
    }
    std::vector<Epoch>& more = shadow_.reads(cell);
    for (Epoch& read : more)
      if (read.agent == epoch.agent || reached(clock.known, read)) {
        read = epoch;
        return;
      }
    more.push_back(epoch);
  }

  std::string who(const Epoch& epoch) const {
    const int agent = epoch.agent;
    if (agent < num_threads_) return fmt_text("thread ", agent);
    if (agent < 2 * num_threads_) return fmt_text("a copy of thread ", agent - num_threads_);
    return fmt_text("a product of warp ", agent - 2 * num_threads_);
  }
  static std::string fmt_text(const char* text, int number) { return text + std::to_string(number); }

  std::string where(uintptr_t address) const {
    const auto shared = reinterpret_cast<uintptr_t>(shared_memory);
    if (address - shared < sizeof(shared_memory))
      return "byte " + std::to_string(address - shared) + " of shared memory";
    return of_block(address) ? "a __shared__ variable" : "global memory";
  }

  void report(const Epoch& earlier, const Epoch& later, uintptr_t address, const char* why) {
    if (faults.size() >= kMostFaults ||
        !reported_.insert({earlier.site, later.site, earlier.kind, later.kind, why}).second)
      return;
    const auto did = [](const Epoch& epoch) { return writes(epoch.kind) ? "writes" : "reads"; };
    faults.push_back(describe_function(code_place(kernel_)) + ", block (" + std::to_string(blockIdx.x) +
                     ", " + std::to_string(blockIdx.y) + "): " + who(later) + " " + did(later) + " " +
                     where(address) + " (" + chains_.describe(later.site) + ") after " + who(earlier) + " " +
                     did(earlier) + " it (" + chains_.describe(earlier.site) + "): " + why);
  }

  const void* kernel_ = nullptr;
  uint32_t block_ = 0;        // counted over all launches
  uint32_t first_block_ = 1;  // of the launch
  int num_threads_ = 0;
  std::vector<ThreadState> threads_;
  ShadowMemory shadow_;
  CallChains chains_;
  std::set<std::tuple<uint32_t, uint32_t, Access, Access, std::string>> reported_;
};

std::unique_ptr<Checker> checker;
bool busy = false;  // what the checker does itself is no kernel's

template <typename Call>
void tell(const Call& call) {
  if (!checker) return;
  busy = true;
  call(*checker);
  busy = false;
}

}  // namespace

void Clock::join(const Clock& other) {
  races::join(known, other.known);
  races::join(fenced, other.fenced);
}

void begin_launch(const void* kernel) {
  tell([=](Checker& it) { it.begin_launch(kernel); });
}
void begin_block(int threads) {
  tell([=](Checker& it) { it.begin_block(threads); });
}
void ignore(const void* memory, size_t bytes) {
  tell([=](Checker& it) { it.ignored.push_back({reinterpret_cast<uintptr_t>(memory), bytes}); });
}
void resume(int thread, const void* stack, size_t stack_bytes) {
  tell([=](Checker& it) {
    it.current = thread;
    it.stack = {reinterpret_cast<uintptr_t>(stack), stack_bytes};
  });
}
void suspend() {
  tell([](Checker& it) { it.current = -1; });
}

Phase following(const Phase& phase) {
  Phase next;
  tell([&](Checker&) { next = phase ? std::make_shared<Clock>(*phase) : std::make_shared<Clock>(); });
  return next;
}

void arrive(Phase& phase) {
  tell([&](Checker& it) { it.arrive(phase); });
}
void leave(const Phase& phase) {
  tell([&](Checker& it) { it.leave(phase); });
}
void access(const void* address, size_t bytes, Access kind, const void* site) {
  if (!checker || busy || checker->current < 0) return;
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (checker->stack.has(at)) return;
  for (const Range& range : checker->ignored)
    if (range.has(at)) return;
  tell([=](Checker& it) { it.access(at, bytes, kind, site); });
}
void enter_function(const void* caller) {
  if (!checker || busy || checker->current < 0) return;
  tell([=](Checker& it) { it.enter_function(caller); });
}
void leave_function() {
  if (!checker || busy || checker->current < 0) return;
  tell([](Checker& it) { it.leave_function(); });
}
void commit_copies() {
  tell([](Checker& it) { it.commit_copies(); });
}
void wait_for_copies(int pending) {
  tell([=](Checker& it) { it.wait_for_copies(static_cast<size_t>(pending)); });
}
void arrive_after_copies(Phase& phase) {
  tell([&](Checker& it) { it.arrive_after_copies(phase); });
}
void proxy_fence() {
  tell([](Checker& it) { it.proxy_fence(); });
}
void commit_products() {
  tell([](Checker& it) { it.commit_products(); });
}
void wait_for_products(int pending) {
  tell([=](Checker& it) { it.wait_for_products(static_cast<uint32_t>(pending)); });
}

}  // namespace races

RaceCheck::RaceCheck() { races::checker = std::make_unique<races::Checker>(); }
RaceCheck::~RaceCheck() { races::checker.reset(); }
std::vector<std::string> RaceCheck::faults() const { return races::checker->faults; }

}  // namespace osdn::emulation
