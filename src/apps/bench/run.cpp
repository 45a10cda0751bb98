#include "apps/bench/run.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "apps/bench/case.h"
#include "apps/bench/measure.h"
#include "base/error.h"
#include "tensor/device.h"
#include "tensor/torch.h"

namespace osdn::bench {
namespace run_detail {

struct Entry {
  std::string op;
  MakeCases make;
};

std::vector<Entry>& entries() {
  static std::vector<Entry> list;
  return list;
}

bool wanted(const Case& test, const Selection& selection) {
  const auto fits = [](const std::string& asked, const std::string& is) {
    return asked.empty() || asked == is;
  };
  const bool shape =
      selection.shapes.empty() ||
      std::any_of(selection.shapes.begin(), selection.shapes.end(),
                  [&](const std::string& part) { return test.shape.find(part) != std::string::npos; });
  return shape && fits(selection.gate, test.gate) && fits(selection.write_key, test.write_key) &&
         fits(selection.pass, test.pass);
}

std::string head(const std::string& op, const Case& test) {
  std::string text = fmt::format(R"({{"op": "{}", "pass": "{}", "shape": "{}")", op, test.pass, test.shape);
  if (!test.gate.empty()) text += fmt::format(R"(, "gate": "{}")", test.gate);
  if (!test.write_key.empty()) text += fmt::format(R"(, "write_key": "{}")", test.write_key);
  return text + fmt::format(R"(, "dtype": "{}", "device": "{}", "threads": {})", c10::toString(test.dtype),
                            test.device.str(), at::get_num_threads());
}

/// False when the case failed its check; it is then not timed.
bool time_case(const std::string& op, const Case& test) {
  const double error = test.error();
  std::string line = head(op, test) + fmt::format(R"(, "error": {:.2e})", error);
  const bool passed = error <= test.tolerance;
  if (passed) {
    const Time eager = measure(test.run, test.device);
    line += fmt::format(R"(, "median_ms": {:.4f}, "spread_ms": {:.4f})", eager.median_ms, eager.spread_ms);
    double ms = eager.median_ms;
    if (test.capturable && test.device.is_cuda()) {
      ms = measure_graph(test.run, test.device).median_ms;
      line += fmt::format(R"(, "graph_ms": {:.4f})", ms);
    }
    const Bound& bound = bound_of(test.device, test.dtype);
    const double gb_per_s = test.bytes / ms * 1e-6;
    const double tflop_per_s = test.flop / ms * 1e-9;
    line += fmt::format(R"(, "gb_per_s": {:.2f}, "tflop_per_s": {:.4f}, "share_of_bound": {:.3f})", gb_per_s,
                        tflop_per_s, std::max(gb_per_s / bound.gb_per_s, tflop_per_s / bound.tflop_per_s));
  } else {
    line += fmt::format(R"(, "failed": "error above {:.2e}, not timed")", test.tolerance);
  }
  fmt::print("{}}}\n", line);
  std::fflush(stdout);
  return passed;
}

/// A case that needs more memory than the device has is left out, and its line says so.
bool run_case(const std::string& op, const Case& test) {
  // A graph's memory cannot be used by the next case before it is given back.
  release_unused_memory(test.device);
  try {
    return time_case(op, test);
  } catch (const c10::OutOfMemoryError&) {
    fmt::print("{}, \"skipped\": \"the device has not memory enough\"}}\n", head(op, test));
    std::fflush(stdout);
    return true;
  }
}

std::vector<Entry> chosen(const std::vector<std::string>& ops) {
  std::vector<Entry> list = entries();
  if (list.empty()) throw EnvironmentError("bench: this program was built with OSDN_BENCHMARKS=OFF");
  std::sort(list.begin(), list.end(), [](const Entry& a, const Entry& b) { return a.op < b.op; });
  if (ops.empty()) return list;
  std::string names;
  for (const Entry& entry : list) names += (names.empty() ? "" : ", ") + entry.op;
  std::vector<Entry> result;
  for (const std::string& op : ops) {
    const auto found =
        std::find_if(list.begin(), list.end(), [&](const Entry& entry) { return entry.op == op; });
    if (found == list.end()) throw UserError("bench: expected one of {}, got \"{}\"", names, op);
    result.push_back(*found);
  }
  return result;
}

}  // namespace run_detail

bool run(const Selection& selection, at::Device device) {
  bool passed = true;
  int64_t count = 0;
  for (const run_detail::Entry& entry : run_detail::chosen(selection.ops))
    for (Case& made : entry.make(device)) {
      const Case test = std::move(made);  // frees its inputs when it is done
      if (!run_detail::wanted(test, selection)) continue;
      ++count;
      passed = run_detail::run_case(entry.op, test) && passed;
    }
  if (count == 0)
    throw UserError(
        "bench: no case has the shape, gate, write key and pass asked for; without options all run");
  return passed;
}

Registrar::Registrar(std::string op, MakeCases make) {
  run_detail::entries().push_back({.op = std::move(op), .make = std::move(make)});
}

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor a = actual.detach().to(at::kDouble);
  const at::Tensor e = expected.detach().to(at::kDouble);
  const double norm = e.norm().item<double>();
  const double difference = (a - e).norm().item<double>();
  return norm > 0 ? difference / norm : difference;
}

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype, at::Device device, uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(shape, at::TensorOptions().dtype(at::kFloat).device(device)).to(dtype);
}

}  // namespace osdn::bench
