#include "tests/emulation/planted_faults.h"

#include "kernels/common/block.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/wgmma.cuh"

namespace osdn::kernels {
namespace planted_faults {

using emulation::Planted;

struct Args {
  Planted which;
  bool faulty;
  float* global;  // [512]
};

constexpr int kTile = 2048;      // bytes: 128 threads, 16 each
constexpr int kBarriers = 8192;  // address behind the tiles

int thread() { return static_cast<int>(threadIdx.x); }
uint32_t own(int bytes) { return thread() * bytes; }
uint32_t across(int bytes) { return (thread() + 32) % 128 * bytes; }

/// Something to do with what was read, or compilers would not read it.
void keep(const Args& args, uint4 read) {
  if (read.x == 12345) args.global[384 + thread()] = 0.0f;
}

void block_barrier(const Args& args) {
  write_shared(own(4), 1.0f);
  if (!args.faulty) __syncthreads();
  args.global[thread()] = read_shared(across(4));
}

void warp_barrier(const Args& args) {
  write_shared(own(4), 1.0f);
  // A shuffle makes lanes meet, and orders no memory.
  const int next = __shfl_sync(0xffffffffu, lane() + 1, lane()) % 32;
  if (!args.faulty) __syncwarp();
  args.global[thread()] = read_shared((thread() / 32 * 32 + next) * 4);
}

void reuse(const Args& args) {
  write_shared(own(4), 1.0f);
  __syncthreads();
  const float read = read_shared(across(4));
  if (!args.faulty) __syncthreads();
  write_shared(own(4), read + 1.0f);
}

void copy_wait(const Args& args) {
  copy_async_16(own(16), args.global + thread() * 4, true);
  copy_async_commit();
  copy_async_16(kTile + own(16), args.global + thread() * 4, true);
  copy_async_commit();
  // The first group is asked for below, of the faulty kernel the second too.
  copy_async_wait<1>();
  __syncthreads();
  keep(args, read_shared_piece((args.faulty ? kTile : 0) + across(16)));
  copy_async_wait<0>();
}

void copy_source(const Args& args) {
  copy_async_16(own(16), args.global + thread() * 4, true);
  copy_async_commit();
  if (!args.faulty) copy_async_wait<0>();
  args.global[thread() * 4] = 0.0f;
  copy_async_wait<0>();
}

void copies_overlap(const Args& args) {
  copy_async_16(own(16), args.global + thread() * 4, true);
  copy_async_commit();
  if (!args.faulty) copy_async_wait<0>();
  copy_async_16(own(16), args.global + thread() * 4, false);
  copy_async_commit();
  copy_async_wait<0>();
}

/// Two stages, six tiles; warps 0 and 1 copy, 2 and 3 read.
void ring(const Args& args) {
  constexpr int kStages = 2;
  constexpr int kTiles = 6;
  const auto full = [](int i) { return kBarriers + 16 * (i % kStages); };
  const auto empty = [](int i) { return kBarriers + 16 * (i % kStages) + 8; };
  if (thread() == 0)
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full(i), 64);
      mbarrier_init(empty(i), 64);
    }
  __syncthreads();
  const bool late = args.which == Planted::kRing;
  for (int i = 0; i < kTiles; ++i) {
    const int parity = i / kStages % 2;
    const uint32_t stage = i % kStages * kTile;
    if (thread() < 64) {
      // That the readers are done with what came into this stage before.
      if (!(args.faulty && late && thread() == 5)) mbarrier_wait(empty(i), 1 ^ parity);
      for (int row = 0; row < 2; ++row)
        copy_async_16(stage + own(16) + row * kTile / 2, args.global + thread() * 4, true);
      mbarrier_arrive_after_copies(full(i));
    } else {
      if (!(args.faulty && !late && thread() == 70)) mbarrier_wait(full(i), parity);
      keep(args, read_shared_piece(stage + (thread() - 64) * 16));
      keep(args, read_shared_piece(stage + kTile - 16 * (thread() - 63)));
      mbarrier_arrive(empty(i));
    }
  }
}

/// A product of 64 x 64 from a tile of 16 x 64 numbers.
void group(const Args& args) {
  const bool fence = !(args.faulty && args.which == Planted::kGroupFence);
  const bool barrier = !(args.faulty && args.which == Planted::kGroup);
  const bool wait = !(args.faulty && args.which == Planted::kGroupReuse);
  float acc[8][4] = {};
  const uint32_t a[4] = {};
  for (int i = 0; i < 4; ++i) write_shared(own(16) + i * 4, 0.0f);
  if (fence) wgmma_publish_shared();
  if (barrier) __syncthreads();
  wgmma_fence();
  wgmma_bf16<64, true>(acc, a, wgmma_columns(RowTile<64>{0}).at(0));
  wgmma_commit();
  if (wait) wgmma_wait<0>();
  __syncthreads();
  write_shared(own(16), acc[0][0]);
  wgmma_wait<0>();
}

void named_barrier(const Args& args) {
  const int warp = thread() / 32;
  if (warp == 2) {
    write_shared(own(4), 1.0f);
    emulation::meet_at(3, 64);
  } else if (warp == 3) {
    emulation::meet_at(args.faulty ? 4 : 3, args.faulty ? 32 : 64);
    keep(args, read_shared_piece(256));
    if (args.faulty) emulation::meet_at(3, 64);
  }
}

void barrier_count(const Args& args) {
  if (thread() < 64) emulation::meet_at(1, args.faulty && thread() >= 32 ? 96 : 64);
}

void missing_threads(const Args& args) {
  const int warp = thread() / 32;
  if (warp == 1) return;
  if (args.faulty && warp == 2) emulation::meet_at(1, 64);
  __syncthreads();
}

void forgotten(const Args& args) {
  if (thread() == 0) mbarrier_init(0, 64);
  __syncthreads();
  if (thread() < (args.faulty ? 63 : 64)) mbarrier_arrive(0);
  mbarrier_wait(0, 0);
}

void diverged_warp(const Args& args) {
  if (args.faulty && lane() == 7)
    __syncwarp();
  else
    __shfl_xor_sync(0xffffffffu, 1, 1);
  if (args.faulty && lane() == 7)
    __shfl_xor_sync(0xffffffffu, 1, 1);
  else
    __syncwarp();
}

void blocks(const Args& args) {
  const int block = static_cast<int>(blockIdx.x);
  args.global[args.faulty ? thread() : block * 128 + thread()] = 1.0f;
}

void blocks_read(const Args& args) {
  const int block = static_cast<int>(blockIdx.x);
  write_shared(own(4), args.global[args.faulty ? thread() : 256 + thread()]);
  args.global[block * 128 + thread()] = 1.0f;
}

void static_variable(const Args& args) {
  __shared__ float sums[128];
  sums[thread()] = 1.0f;
  if (!args.faulty) __syncthreads();
  args.global[thread()] = sums[across(1)];
}

struct Long {
  float values[32];
};
void long_copy(const Args& args) {
  auto* tiles = reinterpret_cast<Long*>(dynamic_shared_bytes);
  if (thread() == 0) tiles[1] = tiles[0];
  if (!args.faulty) __syncthreads();
  if (thread() == 64) tiles[2] = tiles[1];
}

void planted_kernel(Args args) {
  using Call = void (*)(const Args&);
  constexpr Call kCalls[] = {block_barrier,  warp_barrier,  reuse,         copy_wait,       copy_source,
                             copies_overlap, ring,          ring,          group,           group,
                             group,          named_barrier, barrier_count, missing_threads, forgotten,
                             diverged_warp,  blocks,        blocks_read,   static_variable, long_copy};
  kCalls[static_cast<int>(args.which)](args);
}

struct UnorderedArgs {
  int bytes;
  bool second_reads;
  void* read;  // [16] bytes
};
template <typename T>
void access_twice(const UnorderedArgs& args) {
  if (thread() == 0) write_shared_as(64, T());
  if (thread() != 32) return;
  if (args.second_reads)
    *static_cast<T*>(args.read) = read_shared_as<T>(64);
  else
    write_shared_as(64, T());
}
void unordered_kernel(UnorderedArgs args) {
  if (args.bytes == 2) access_twice<uint16_t>(args);
  if (args.bytes == 4) access_twice<float>(args);
  if (args.bytes == 8) access_twice<float2>(args);
  if (args.bytes == 16) access_twice<float4>(args);
}

struct SumArgs {
  bool waited_for;
  float* sum;
};
void sum_kernel(SumArgs args) {
  const uint32_t ones = pack_bf16(1.0f, 1.0f);
  const uint32_t a[4] = {ones, ones, ones, ones};
  float acc[8][4] = {};
  for (int i = 0; i < 4; ++i) write_shared_bits(own(16) + i * 4, ones);
  wgmma_publish_shared();
  __syncthreads();
  wgmma_fence();
  wgmma_bf16<64, true>(acc, a, wgmma_columns(RowTile<64>{0}).at(0));
  wgmma_commit();
  if (args.waited_for) wgmma_wait<0>();
  if (thread() == 0) *args.sum = acc[0][0];
  wgmma_wait<0>();
}

}  // namespace planted_faults
}  // namespace osdn::kernels

namespace osdn::emulation {

using namespace kernels::planted_faults;

void run_planted(Planted which, bool faulty) {
  std::vector<float> global(512);
  const bool several = which == Planted::kBlocks || which == Planted::kBlocksRead;
  kernels::launch_kernel(planted_kernel, dim3(several ? 2 : 1), 128, 16384,
                         Args{which, faulty, global.data()}, nullptr);
}

void run_unordered(int bytes, bool second_reads) {
  alignas(16) unsigned char read[16];
  kernels::launch_kernel(unordered_kernel, dim3(1), 64, 1024, UnorderedArgs{bytes, second_reads, read},
                         nullptr);
}

float sum_of_product(bool waited_for) {
  float sum = -1.0f;
  kernels::launch_kernel(sum_kernel, dim3(1), 128, 2048, SumArgs{waited_for, &sum}, nullptr);
  return sum;
}

}  // namespace osdn::emulation
