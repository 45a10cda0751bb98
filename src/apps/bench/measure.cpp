#include "apps/bench/measure.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "tensor/device.h"
#include "tensor/device_graph.h"
#include "tensor/device_timer.h"
#include "tensor/torch.h"

namespace osdn::bench {
namespace measure_detail {

using Clock = std::chrono::steady_clock;

constexpr int kSamples = 15;
constexpr double kMillisecondsPerSample = 20;  // on a CPU short work is repeated until a sample lasts so long
// On a GPU every sample is one run, as many as fit into a budget.
constexpr double kDeviceBudgetMs = 80;
constexpr int kLeastDeviceSamples = 7;
constexpr int kMostDeviceSamples = 60;
constexpr int64_t kFlushBytes = int64_t{1} << 28;  // several times any L2 cache

double milliseconds_of(const std::function<void()>& work, int repeats, at::Device device) {
  synchronize(device);
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < repeats; ++i) work();
  synchronize(device);
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / repeats;
}

Time summary(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  return {.median_ms = samples[n / 2], .spread_ms = samples[3 * n / 4] - samples[n / 4]};
}

Time measure_on_gpu(const std::function<void()>& work, at::Device device) {
  for (int i = 0; i < 2; ++i) work();
  const double once = milliseconds_of(work, 1, device);
  const int count =
      std::clamp(static_cast<int>(kDeviceBudgetMs / once), kLeastDeviceSamples, kMostDeviceSamples);
  at::Tensor flush = at::empty({kFlushBytes}, at::TensorOptions().dtype(at::kByte).device(device));
  std::vector<DeviceTimer> timers(static_cast<size_t>(count));
  for (DeviceTimer& timer : timers) {
    flush.zero_();
    timer.start();
    work();
    timer.stop();
  }
  std::vector<double> samples;
  for (DeviceTimer& timer : timers) samples.push_back(timer.milliseconds());
  return summary(std::move(samples));
}

}  // namespace measure_detail

Time measure(const std::function<void()>& work, at::Device device) {
  namespace detail = measure_detail;
  if (device.is_cuda()) return detail::measure_on_gpu(work, device);
  work();
  const double once = detail::milliseconds_of(work, 1, device);
  const int repeats = std::max(1, static_cast<int>(detail::kMillisecondsPerSample / std::max(once, 1e-3)));
  std::vector<double> samples;
  for (int i = 0; i < detail::kSamples; ++i)
    samples.push_back(detail::milliseconds_of(work, repeats, device));
  return detail::summary(std::move(samples));
}

Time measure_graph(const std::function<void()>& work, at::Device device) {
  DeviceGraph graph;
  graph.capture(work);
  return measure_detail::measure_on_gpu([&graph] { graph.replay(); }, device);
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

}  // namespace osdn::bench
