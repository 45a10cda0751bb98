// osdn_bench [op...]: runs the registered benchmarks, all of them without arguments.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <map>

#include "tensor/device.h"
#include "tensor/torch.h"
#include "tests/bench/bench.h"

namespace osdn::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSamples = 15;
constexpr double kMillisecondsPerSample = 20;  // short ops are repeated until a sample lasts about this long

struct Entry {
  std::string op;
  MakeCases make;
};

std::vector<Entry>& entries() {
  static std::vector<Entry> list;
  return list;
}

struct Time {
  double median_ms = 0;
  double spread_ms = 0;  // distance of the quartiles
};

// Rates of this machine that bound every op: what a copy and a square matrix product reach.
struct Bound {
  double gb_per_s = 0;
  double tflop_per_s = 0;
};

double milliseconds_of(const std::function<void()>& run, int repeats, at::Device device) {
  synchronize(device);
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < repeats; ++i) run();
  synchronize(device);
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / repeats;
}

Time measure(const std::function<void()>& run, at::Device device) {
  run();
  const double once = milliseconds_of(run, 1, device);
  const int repeats = std::max(1, static_cast<int>(kMillisecondsPerSample / std::max(once, 1e-3)));
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) samples.push_back(milliseconds_of(run, repeats, device));
  std::sort(samples.begin(), samples.end());
  return {.median_ms = samples[kSamples / 2], .spread_ms = samples[3 * kSamples / 4] - samples[kSamples / 4]};
}

const Bound& bound_of(at::Device device, at::ScalarType dtype) {
  static std::map<std::string, Bound> known;
  const std::string key = device.str() + c10::toString(dtype);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const int64_t n = device.is_cuda() ? 8192 : 1024;
  const at::Tensor a = at::randn({n, n}, options);  // [n, n]
  const at::Tensor b = at::randn({n, n}, options);  // [n, n]
  at::Tensor c = at::empty({n, n}, options);        // [n, n]
  const double gemm_ms = measure([&] { at::mm_out(c, a, b); }, device).median_ms;
  const int64_t bytes = device.is_cuda() ? int64_t{1} << 31 : int64_t{1} << 28;
  const at::Tensor from = at::ones({bytes}, options.dtype(at::kByte));  // [bytes]
  at::Tensor to = at::empty_like(from);                                 // [bytes]
  const double copy_ms = measure([&] { to.copy_(from); }, device).median_ms;
  const double size = static_cast<double>(n);
  const Bound bound{.gb_per_s = 2.0 * static_cast<double>(bytes) / copy_ms * 1e-6,
                    .tflop_per_s = 2 * size * size * size / gemm_ms * 1e-9};
  return known.emplace(key, bound).first->second;
}

// Returns false when the case failed its check; it is then not timed.
bool run_case(const std::string& op, const Case& test) {
  const double error = test.error();
  const std::string head = fmt::format(
      R"({{"op": "{}", "pass": "{}", "shape": "{}", "dtype": "{}", "device": "{}", "threads": {}, "error": {:.2e})",
      op, test.pass, test.shape, c10::toString(test.dtype), test.device.str(), at::get_num_threads(), error);
  if (!(error <= test.tolerance)) {
    fmt::print("{}, \"failed\": \"error above {:.2e}, not timed\"}}\n", head, test.tolerance);
    return false;
  }
  const Time time = measure(test.run, test.device);
  const Bound& bound = bound_of(test.device, test.dtype);
  const double gb_per_s = test.bytes / time.median_ms * 1e-6;
  const double tflop_per_s = test.flop / time.median_ms * 1e-9;
  const double share = std::max(gb_per_s / bound.gb_per_s, tflop_per_s / bound.tflop_per_s);
  fmt::print(
      "{}, \"median_ms\": {:.4f}, \"spread_ms\": {:.4f}, \"gb_per_s\": {:.2f}, \"tflop_per_s\": {:.4f}, "
      "\"share_of_bound\": {:.3f}}}\n",
      head, time.median_ms, time.spread_ms, gb_per_s, tflop_per_s, share);
  std::fflush(stdout);
  return true;
}

int run_all(const std::vector<std::string>& wanted) {
  std::vector<Entry> list = entries();
  std::sort(list.begin(), list.end(), [](const Entry& a, const Entry& b) { return a.op < b.op; });
  for (const std::string& op : wanted) {
    if (std::any_of(list.begin(), list.end(), [&](const Entry& entry) { return entry.op == op; })) continue;
    std::string names;
    for (const Entry& entry : list) names += (names.empty() ? "" : ", ") + entry.op;
    fmt::print(stderr, "osdn_bench: expected one of {}, got \"{}\"\n", names, op);
    return 2;
  }
  std::vector<at::Device> devices = {at::kCPU};
  if (num_gpus() > 0) devices.emplace_back(at::kCUDA, 0);
  bool passed = true;
  for (const Entry& entry : list) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), entry.op) == wanted.end()) continue;
    for (const at::Device device : devices)
      for (const Case& test : entry.make(device)) passed = run_case(entry.op, test) && passed;
  }
  return passed ? 0 : 5;
}

}  // namespace

Registrar::Registrar(std::string op, MakeCases make) {
  entries().push_back({.op = std::move(op), .make = std::move(make)});
}

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor a = actual.detach().to(at::kCPU, at::kDouble);
  const at::Tensor e = expected.detach().to(at::kCPU, at::kDouble);
  const double norm = e.norm().item<double>();
  const double difference = (a - e).norm().item<double>();
  return norm > 0 ? difference / norm : difference;
}

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype, at::Device device, uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(shape, at::TensorOptions().dtype(at::kFloat)).to(device, dtype);
}

}  // namespace osdn::bench

int main(int argc, char** argv) {
  try {
    return osdn::bench::run_all(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    fmt::print(stderr, "osdn_bench: {}\n", error.what());
    return 5;
  }
}
