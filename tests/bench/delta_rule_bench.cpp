// The delta rule at the quickstart's shape on the CPU; on a GPU at those of the shipped models, of the peer's
// benchmark, of packed and long documents, and decoding.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "apps/bench/case.h"
#include "ops/delta_rule.h"
#include "ops/precond_scan.h"
#include "tensor/torch.h"

namespace osdn::bench {
namespace delta_rule_bench {

// Log-decays by channel have the dtype of the rows, as models pass them, or fp32.
enum class Gate { kNone, kScalar, kChannel, kChannelFp32 };
enum class WriteKey { kNone, kGiven, kScan };

const char* name(Gate gate) {
  return gate == Gate::kNone      ? "none"
         : gate == Gate::kScalar  ? "scalar"
         : gate == Gate::kChannel ? "channel"
                                  : "channel fp32";
}
const char* name(WriteKey key) {
  return key == WriteKey::kNone ? "none" : key == WriteKey::kGiven ? "given" : "scan";
}

struct Shape {
  std::string text;
  std::vector<int64_t> offsets;
  int64_t H, K, V;
  bool decode = false;
};

Shape equal_rows(int64_t B, int64_t T, int64_t H, int64_t K, int64_t V) {
  Shape shape{
      .text = fmt::format("B{} T{} H{} K{} V{}", B, T, H, K, V), .offsets = {}, .H = H, .K = K, .V = V};
  for (int64_t i = 0; i <= B; ++i) shape.offsets.push_back(i * T);
  return shape;
}

Shape decoding(int64_t S, int64_t H, int64_t K, int64_t V) {
  Shape shape = equal_rows(S, 1, H, K, V);
  shape.text = fmt::format("decode S{} H{} K{} V{}", S, H, K, V);
  shape.decode = true;
  return shape;
}

/// Documents of exponentially distributed lengths, as text has them.
Shape packed(int64_t num_tokens, double mean_length, int64_t H, int64_t K, int64_t V) {
  Shape shape{.text = fmt::format("packed N{} mean{} H{} K{} V{}", num_tokens, mean_length, H, K, V),
              .offsets = {0},
              .H = H,
              .K = K,
              .V = V};
  std::mt19937_64 generator(700);
  while (shape.offsets.back() < num_tokens) {
    const double uniform = (static_cast<double>(generator() >> 11) + 0.5) / 9007199254740992.0;
    const auto length = static_cast<int64_t>(std::ceil(-mean_length * std::log(uniform)));
    shape.offsets.push_back(std::min(num_tokens, shape.offsets.back() + length));
  }
  return shape;
}

/// The inputs, made when they are first needed, and the op on them.
class Problem {
 public:
  Problem(Shape shape, Gate gate, WriteKey write_key, at::ScalarType dtype, at::Device device)
      : shape_(std::move(shape)), gate_(gate), write_key_(write_key), dtype_(dtype), device_(device) {}

  /// Error of the output and of every gradient over the first tokens of the first sequence and its first
  /// heads: the whole shape is run, the float64 chunk form only has to follow that part.
  double error() {
    make();
    const int64_t tokens = std::min(shape_.offsets[1], checked_tokens());
    const int64_t heads = std::min<int64_t>(shape_.H, 4);
    const auto part = [=](const at::Tensor& x) { return x.narrow(0, 0, tokens).narrow(1, 0, heads); };
    if (shape_.decode) {
      const at::NoGradGuard no_grad;
      return relative_error(op(args_), op(in_float64(args_)));
    }
    at::Tensor upstream = at::zeros(args_.v.sizes(), args_.v.options().requires_grad(false));
    part(upstream).copy_(random({tokens, heads, shape_.V}, dtype_, device_, 9));
    const at::Tensor o = op(args_);
    const auto found = torch::autograd::grad({o}, leaves(args_), {upstream});
    ops::DeltaRuleArgs few = in_float64(args_);
    for (at::Tensor* x : {&few.q, &few.k, &few.v, &few.beta, &few.write_key, &few.log_decay})
      if (x->defined()) *x = part(x->detach()).clone().set_requires_grad(true);
    few.sequences = ops::Sequences::equal(1, tokens, device_);
    const at::Tensor truth = op(few);
    const auto expected = torch::autograd::grad({truth}, leaves(few), {part(upstream).to(at::kDouble)});
    double worst = relative_error(part(o), truth);
    for (size_t i = 0; i < found.size(); ++i)
      worst = std::max(worst, relative_error(part(found[i]), expected[i]));
    return worst;
  }

  void forward() {
    make();
    const at::NoGradGuard no_grad;
    op(args_);
  }

  void forward_and_backward() {
    make();
    torch::autograd::grad({op(args_)}, leaves(args_), {upstream_});
  }

 private:
  /// A preconditioner's truth is a loop over tokens.
  int64_t checked_tokens() const { return write_key_ == WriteKey::kScan ? 200 : 2048; }

  void make() {
    if (args_.q.defined()) return;
    const int64_t N = shape_.offsets.back();
    const auto leaf = [](const at::Tensor& x) { return x.detach().set_requires_grad(true); };
    args_.q = leaf(random({N, shape_.H, shape_.K}, dtype_, device_, 1));
    args_.k = leaf(random({N, shape_.H, shape_.K}, dtype_, device_, 2));
    args_.v = leaf(random({N, shape_.H, shape_.V}, dtype_, device_, 3));
    args_.beta = leaf(random({N, shape_.H}, at::kFloat, device_, 4).sigmoid());
    if (write_key_ == WriteKey::kGiven) {
      const at::Tensor scale = 1 + 0.3 * random({N, shape_.H, shape_.K}, at::kFloat, device_, 6).sin();
      const at::Tensor key = args_.k.detach().to(at::kFloat);
      args_.write_key = leaf((key / key.norm(2, {-1}, true) * scale).to(dtype_));
    }
    if (gate_ == Gate::kScalar)
      args_.log_decay = leaf(at::log_sigmoid(random({N, shape_.H}, at::kFloat, device_, 5)));
    if (gate_ == Gate::kChannel || gate_ == Gate::kChannelFp32)
      args_.log_decay = leaf(at::log_sigmoid(random({N, shape_.H, shape_.K}, at::kFloat, device_, 5))
                                 .to(gate_ == Gate::kChannel ? dtype_ : at::kFloat));
    if (shape_.decode)
      args_.initial_state =
          random({static_cast<int64_t>(shape_.offsets.size()) - 1, shape_.H, shape_.K, shape_.V}, at::kFloat,
                 device_, 7);
    args_.sequences = ops::Sequences::make(shape_.offsets, device_);
    upstream_ = random({N, shape_.H, shape_.V}, dtype_, device_, 8);
  }

  static ops::DeltaRuleArgs in_float64(ops::DeltaRuleArgs args) {
    for (at::Tensor* x :
         {&args.q, &args.k, &args.v, &args.beta, &args.write_key, &args.log_decay, &args.initial_state})
      if (x->defined()) *x = x->detach().to(at::kDouble);
    return args;
  }

  /// The reference in float64. With the OSDN scan (box 2/3 .. 3/2, step size 1) as a layer runs the two.
  at::Tensor op(ops::DeltaRuleArgs args) const {
    const bool truth = args.q.scalar_type() == at::kDouble;
    if (write_key_ == WriteKey::kScan) {
      ops::PrecondScanArgs scan{.k = args.k, .beta = args.beta, .sequences = args.sequences};
      scan.initial_scale.value =
          at::ones({args.v.size(1), args.k.size(2)}, args.beta.options().requires_grad(false));
      const ops::PrecondScanOutput keys = truth ? ops::precond_scan_ref(scan) : ops::precond_scan(scan);
      args.write_key = keys.write_key;
      args.k = keys.read_key;
    }
    return (truth ? ops::delta_rule_chunked(args) : ops::delta_rule(args)).o;
  }

  static std::vector<at::Tensor> leaves(const ops::DeltaRuleArgs& args) {
    std::vector<at::Tensor> list = {args.q, args.k, args.v, args.beta};
    for (const at::Tensor& x : {args.write_key, args.log_decay})
      if (x.defined()) list.push_back(x);
    return list;
  }

  Shape shape_;
  Gate gate_;
  WriteKey write_key_;
  at::ScalarType dtype_;
  at::Device device_;
  ops::DeltaRuleArgs args_;
  at::Tensor upstream_;  // [N, H, V]
};

struct Work {
  double bytes = 0;
  double flop = 0;
};

/// The least a token and head takes in chunks of 64: inputs and outputs once, for training also what the
/// forward leaves to the backward (docs/ops/delta_rule.md, "Cost").
Work least_work(const Shape& shape, Gate gate, WriteKey write_key, double element, bool backward) {
  const double C = 64;
  const double K = static_cast<double>(shape.K);
  const double V = static_cast<double>(shape.V);
  const bool own_key = write_key != WriteKey::kNone;
  const double gates = gate == Gate::kChannel ? K * element : gate == Gate::kChannelFp32 ? K * 4 : 4;
  if (shape.decode)
    return {.bytes = 8 * K * V + element * (2 * K + 2 * V + (own_key ? K : 0)) + 4 + gates,
            .flop = 8 * K * V};
  Work work{.bytes = element * (2 * K + 2 * V) + 2 + gates, .flop = 6 * K * V + 4 * C * (K + V)};
  // The scan makes its key from k: nothing more has to be read.
  if (write_key == WriteKey::kGiven) work.bytes += element * K;
  if (!backward) return work;
  work.bytes += element * C + element * K * V / C + element * V;  // inverse, states, errors: written
  work.bytes += element * C + element * K * V / C + element * V;  // and read
  work.bytes += element * (4 * K + 2 * V) + 10 + 2 * gates;       // q, k, dO; dq, dk, dv
  if (write_key == WriteKey::kGiven) work.bytes += 2 * element * K;
  work.flop += 12 * K * V + C * (8 * V + (own_key ? 10 : 8) * K);
  return work;
}

void add_cases(std::vector<Case>& cases, const Shape& shape, Gate gate, WriteKey write_key,
               at::Device device) {
  const at::ScalarType dtype = device.is_cuda() ? at::kBFloat16 : at::kFloat;
  const auto problem = std::make_shared<Problem>(shape, gate, write_key, dtype, device);
  const double rows = static_cast<double>(shape.offsets.back() * shape.H);
  const double element = static_cast<double>(at::elementSize(dtype));
  const Work forward_work = least_work(shape, gate, write_key, element, false);
  const Case forward{
      .shape = shape.text,
      .gate = name(gate),
      .write_key = name(write_key),
      .pass = "forward",
      .dtype = dtype,
      .device = device,
      .bytes = rows * forward_work.bytes,
      .flop = rows * forward_work.flop,
      .error = [problem] { return problem->error(); },
      // The gradient of a log-decay is a sum of terms that cancel: about twice the others' error.
      .tolerance = dtype == at::kFloat   ? 1e-4
                   : gate == Gate::kNone ? 1e-2
                                         : 2e-2,
      .run = [problem] { problem->forward(); },
      .capturable = true};
  cases.push_back(forward);
  if (shape.decode) return;
  const Work both_work = least_work(shape, gate, write_key, element, true);
  Case both = forward;
  both.pass = "forward+backward";
  both.bytes = rows * both_work.bytes;
  both.flop = rows * both_work.flop;
  both.run = [problem] { problem->forward_and_backward(); };
  cases.push_back(both);
}

std::vector<Case> make_cases(at::Device device) {
  std::vector<Case> cases;
  const auto gates = {Gate::kNone, Gate::kScalar, Gate::kChannel};
  const auto write_keys = {WriteKey::kNone, WriteKey::kGiven, WriteKey::kScan};
  const Shape first = device.is_cuda() ? equal_rows(16, 2048, 8, 128, 128) : equal_rows(8, 256, 3, 64, 64);
  for (const Gate gate : gates)
    for (const WriteKey write_key : write_keys) add_cases(cases, first, gate, write_key, device);
  if (!device.is_cuda()) return cases;
  add_cases(cases, first, Gate::kChannelFp32, WriteKey::kNone, device);
  for (const Shape& shape :
       {equal_rows(1, 8192, 96, 128, 128), equal_rows(2, 16384, 16, 128, 128),
        equal_rows(4, 2048, 16, 128, 128), equal_rows(4, 4096, 64, 128, 128),
        equal_rows(8, 2048, 32, 256, 256), equal_rows(8, 1024, 8, 64, 64), equal_rows(8, 4096, 8, 128, 128),
        packed(65536, 700, 8, 128, 128), equal_rows(1, 65536, 8, 128, 128)})
    for (const Gate gate : gates) add_cases(cases, shape, gate, WriteKey::kNone, device);
  add_cases(cases, equal_rows(8, 2048, 16, 128, 128), Gate::kNone, WriteKey::kNone, device);
  add_cases(cases, equal_rows(8, 2048, 16, 128, 128), Gate::kNone, WriteKey::kScan, device);
  add_cases(cases, equal_rows(16, 2048, 6, 128, 256), Gate::kNone, WriteKey::kNone, device);
  add_cases(cases, equal_rows(16, 2048, 6, 128, 256), Gate::kScalar, WriteKey::kNone, device);
  add_cases(cases, equal_rows(8, 2048, 6, 256, 512), Gate::kScalar, WriteKey::kNone, device);
  for (const int64_t sequences : {1, 64})
    for (const Gate gate : gates)
      for (const WriteKey write_key : write_keys)
        if (gate == Gate::kNone || write_key == WriteKey::kNone)
          add_cases(cases, decoding(sequences, 8, 128, 128), gate, write_key, device);
  return cases;
}

const Registrar kDeltaRuleBench("delta_rule", make_cases);

}  // namespace delta_rule_bench
}  // namespace osdn::bench
