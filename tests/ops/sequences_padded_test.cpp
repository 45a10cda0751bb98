// Empty sequences behind the others, as a CUDA graph pads them, change no bit of what ops give.
#include <vector>

#include "ops/delta_rule.h"
#include "ops/precond_scan.h"
#include "ops/sequences.h"
#include "tests/support/test.h"

namespace osdn::ops {
namespace sequences_padded_test {

constexpr int64_t kTokens = 90;
constexpr int64_t kHeads = 2;
constexpr int64_t kSize = 128;

/// Leaves on one device.
struct Random {
  at::Device device;
  at::Tensor operator()(at::IntArrayRef shape, at::ScalarType type, uint64_t seed) const {
    at::manual_seed(seed);
    return at::randn(shape).to(device).to(type).set_requires_grad(true);
  }
};

enum class Decay { kNone, kScalar, kChannel };

/// Output, final states of the first three sequences and all gradients.
std::vector<at::Tensor> delta_rule_of(const SequencesPtr& sequences, Decay decay, bool write_key) {
  const Random random{sequences->offsets().device()};
  const std::vector<int64_t> rows = {kTokens, kHeads, kSize};
  DeltaRuleArgs args;
  args.q = random(rows, at::kBFloat16, 1);
  args.k = random(rows, at::kBFloat16, 2);
  args.v = random(rows, at::kBFloat16, 3);
  args.beta = at::sigmoid(random({kTokens, kHeads}, at::kFloat, 4)).detach().set_requires_grad(true);
  std::vector<at::Tensor> inputs = {args.q, args.k, args.v, args.beta};
  if (write_key) inputs.push_back(args.write_key = random(rows, at::kBFloat16, 5));
  if (decay != Decay::kNone) {
    at::Tensor raw = decay == Decay::kScalar ? random({kTokens, kHeads}, at::kFloat, 6)
                                             : random({kTokens, kHeads, kSize}, at::kFloat, 6);
    args.log_decay = (-at::exp(raw.detach())).set_requires_grad(true);
    inputs.push_back(args.log_decay);
  }
  args.sequences = sequences;
  const DeltaRuleOutput out = delta_rule(args);
  const at::Tensor states = out.final_state.narrow(0, 0, 3);
  std::vector<at::Tensor> results = torch::autograd::grad(
      {out.o, states}, inputs, {random(rows, at::kBFloat16, 7).detach(), at::ones_like(states)});
  results.push_back(out.o.detach());
  results.push_back(states.detach());
  return results;
}

std::vector<at::Tensor> scan_of(const SequencesPtr& sequences) {
  const Random random{sequences->offsets().device()};
  PrecondScanArgs args;
  args.k = random({kTokens, kHeads, kSize}, at::kBFloat16, 1);
  args.beta = at::sigmoid(random({kTokens, kHeads}, at::kFloat, 2)).detach().set_requires_grad(true);
  const at::Tensor sink = at::zeros({kHeads, kSize}, at::TensorOptions().device(random.device));
  args.initial_scale = {.value = at::ones_like(sink), .sink = sink};
  args.sequences = sequences;
  args.collect_statistics = true;
  const PrecondScanOutput out = precond_scan(args);
  std::vector<at::Tensor> results = torch::autograd::grad(
      {out.write_key}, {args.k, args.beta}, {random(args.k.sizes(), at::kBFloat16, 3).detach()});
  for (const at::Tensor& tensor : {sink, out.write_key.detach(), out.statistics}) results.push_back(tensor);
  return results;
}

void check_equal_bits(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK(found[i].equal(expected[i]));
  }
}

/// The padded sequences.
SequencesPtr check_padding(at::Device device, int64_t padded_to) {
  const std::vector<int64_t> offsets = {0, 66, 67, kTokens};
  const SequencesPtr exact = Sequences::make(offsets, device);
  const SequencesPtr padded = Sequences::padded(offsets, padded_to, device);
  CAPTURE(padded_to);
  for (const Decay decay : {Decay::kNone, Decay::kScalar, Decay::kChannel})
    for (const bool write_key : {false, true}) {
      CAPTURE(static_cast<int>(decay), write_key);
      check_equal_bits(delta_rule_of(padded, decay, write_key), delta_rule_of(exact, decay, write_key));
    }
  check_equal_bits(scan_of(padded), scan_of(exact));
  return padded;
}

// Three sequences of two heads are scanned by four warps each, a hundred and more by eight.
TEST_CASE("empty sequences at the end change no bit of delta_rule and precond_scan on a GPU",
          "[sequences_padded][cuda]") {
  const int64_t padded_to = GENERATE(4, 40, 300);
  CHECK(!check_padding(at::Device(at::kCUDA, 0), padded_to)->lengths_read());
}

TEST_CASE("empty sequences at the end change no bit of delta_rule and precond_scan on a CPU",
          "[sequences_padded]") {
  CHECK(check_padding(at::kCPU, 5)->lengths_read());
}

}  // namespace sequences_padded_test
}  // namespace osdn::ops
