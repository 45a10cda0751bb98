#include "tests/emulation/tensor_cores.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulation/cuda_on_cpu.h"
#include "tests/emulation/race_check.h"

namespace osdn::emulation {
namespace {

constexpr int kDepth = 16;
constexpr int kMostColumns = 256;
constexpr int kGroupRows = 64;

/// The operands of a warp's product as numbers, laid out by all its lanes.
struct Operands {
  float a[kGroupRows][kDepth];
  float b[kMostColumns][kDepth];  // by column
};
std::array<Operands, 32> operands;  // by warp
Operands& own_operands() { return operands[threadIdx.x / 32]; }

/// A product that is under way: its sums are in the accumulators once it has been waited for.
struct Product {
  float (*acc)[4];
  int group;  // groups that the thread had committed before
  std::vector<std::array<float, 4>> sums;
};
struct Products {
  std::vector<Product> queued;
  int groups = 0;
};
std::array<Products, 1024> products;  // by thread
Products& own_products() { return products[threadIdx.x]; }

float number(uint32_t bits, Format format) {
  if (format == Format::kBf16) return __uint_as_float(bits << 16);
  if (format == Format::kTf32) return __uint_as_float(bits & 0xffffe000u);
  const auto half = static_cast<uint16_t>(bits);
  __half x;
  std::memcpy(&x, &half, 2);
  return __half2float(x);
}

/// Registers of a fragment with the two numbers (tf32: one) of each at row or column `n`, from `k` on.
void lay_out(float (*to)[kDepth], int n, int k, uint32_t bits, Format format) {
  if (format == Format::kTf32) {
    to[n][k / 2] = number(bits, format);
  } else {
    to[n][k] = number(bits & 0xffffu, format);
    to[n][k + 1] = number(bits >> 16, format);
  }
}

/// A fragments: rows g and g + 8, k = 2t and 2t + 8.
void lay_out_a(const uint32_t (&a)[4], Format format) {
  for (int i = 0; i < 4; ++i)
    lay_out(own_operands().a, lane() / 4 + (i & 1) * 8, lane() % 4 * 2 + (i >> 1) * 8, a[i], format);
}

std::array<float, 4> product(int first_row, int first_column, int depth) {
  const Operands& of = own_operands();
  std::array<float, 4> sums = {};
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < depth; ++k)
      sums[i] +=
          of.a[first_row + lane() / 4 + (i >> 1) * 8][k] * of.b[first_column + lane() % 4 * 2 + (i & 1)][k];
  return sums;
}

/// Address of the 16 bytes with (n, k) in them.
uint32_t piece(const SharedOperand& operand, int n, int k) {
  const auto field = [&](int first) {
    return static_cast<uint32_t>(operand.descriptor >> first & 0x3fffu) << 4;
  };
  const uint32_t leading = field(16);
  const uint32_t stride = field(32);
  uint32_t at = field(0);
  if (operand.descriptor >> 62 == 1) {  // rows of 128 bytes, swizzled
    at += operand.transposed ? (n >> 6) * leading + (k >> 3) * stride + (k & 7) * 128 + (n & 63) * 2
                             : (n >> 3) * stride + (n & 7) * 128 + k * 2;
    return at ^ (at >> 7 & 7) << 4;
  }
  if (!operand.transposed) fail("wgmma: an operand in 8x8 blocks that is not transposed");
  return at + (n >> 3) * stride + (k >> 3) * leading + (k & 7) * 16 + (n & 7) * 2;
}

/// Lanes take turns at the pieces of an operand with `count` rows or columns.
void lay_out(float (*to)[kDepth], int count, const SharedOperand& operand, const void* site) {
  for (int i = lane(); i < count * kDepth / 8; i += 32) {
    const int n = operand.transposed ? i % (count / 8) * 8 : i / 2;
    const int k = operand.transposed ? i / (count / 8) : i % 2 * 8;
    const uint32_t at = piece(operand, n, k);
    if (at % 16 != 0 || at + 16 > static_cast<uint32_t>(shared_limit))
      fail("wgmma: an operand at byte " + std::to_string(at) + " of shared memory");
    races::access(shared_memory + at, 16, races::Access::kProductRead, site);
    for (int j = 0; j < 8; ++j) {
      uint16_t bits;
      std::memcpy(&bits, shared_memory + at + 2 * j, 2);
      to[operand.transposed ? n + j : n][operand.transposed ? k : k + j] = number(bits, operand.format);
    }
  }
}

void queue(float (*acc)[4], int blocks, int first_row, const SharedOperand& b, const void* site) {
  lay_out(own_operands().b, blocks * 8, b, site);
  meet_warp();
  Product queued{.acc = acc, .group = own_products().groups};
  for (int n = 0; n < blocks; ++n) queued.sums.push_back(product(first_row, n * 8, kDepth));
  own_products().queued.push_back(std::move(queued));
  meet_warp();
}

}  // namespace

void mma(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Format format) {
  lay_out_a(a, format);
  lay_out(own_operands().b, lane() / 4, lane() % 4 * 2, b0, format);
  lay_out(own_operands().b, lane() / 4, lane() % 4 * 2 + 8, b1, format);
  meet_warp();
  const std::array<float, 4> sums = product(0, 0, format == Format::kTf32 ? kDepth / 2 : kDepth);
  for (int i = 0; i < 4; ++i) acc[i] += sums[i];
  meet_warp();
}

void wgmma(float (*acc)[4], int blocks, const uint32_t (&a)[4], const SharedOperand& b) {
  lay_out_a(a, b.format);
  queue(acc, blocks, 0, b, __builtin_return_address(0));
}

void wgmma(float (*acc)[4], int blocks, const SharedOperand& a, const SharedOperand& b) {
  lay_out(own_operands().a, kGroupRows, a, __builtin_return_address(0));
  queue(acc, blocks, static_cast<int>(threadIdx.x) / 32 % 4 * 16, b, __builtin_return_address(0));
}

void wgmma_commit() {
  races::commit_products();
  ++own_products().groups;
}

void wgmma_wait(int pending) {
  races::wait_for_products(pending);
  auto& [queued, groups] = own_products();
  size_t over = 0;
  for (; over < queued.size() && queued[over].group < groups - pending; ++over)
    for (size_t n = 0; n < queued[over].sums.size(); ++n)
      for (int i = 0; i < 4; ++i) queued[over].acc[n][i] += queued[over].sums[n][i];
  queued.erase(queued.begin(), queued.begin() + static_cast<std::ptrdiff_t>(over));
}

void forget_products() { products.fill({}); }

}  // namespace osdn::emulation
