#include "ops/delta_rule.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/detail/delta_rule.h"
#include "ops/detail/delta_rule_step.h"
#include "ops/l2_norm.h"
#include "tensor/check.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace delta_rule_detail {

// Log-decays are never positive; this much is forgiven as rounding.
constexpr double kLogDecayRounding = 1e-3;

/// With the scale still to be chosen.
Problem problem_of(const DeltaRuleArgs& args) {
  return {.q = args.q,
          .k = args.k,
          .v = args.v,
          .beta = args.beta,
          .write_key = args.write_key,
          .log_decay = args.log_decay,
          .initial_state = args.initial_state,
          .sequences = args.sequences};
}

Problem checked(const DeltaRuleArgs& args) {
  constexpr const char* kOp = "delta_rule";
  if (!args.sequences)
    throw UserError("{}: sequences: expected the offsets of the packed sequences, got none", kOp);
  check_shape(kOp, "q", args.q, {-1, -1, -1});
  check_dtype(kOp, "q", args.q, {at::kFloat, at::kBFloat16, at::kDouble});
  check_shape(kOp, "v", args.v, {args.q.size(0), -1, -1});
  const int64_t N = args.q.size(0);
  const int64_t H = args.q.size(1);
  const int64_t K = args.q.size(2);
  const int64_t HV = args.v.size(1);
  const int64_t V = args.v.size(2);
  const int64_t S = args.sequences->num_sequences();
  if (args.sequences->num_tokens() != N)
    throw UserError("{}: q: expected the {} tokens of the sequences, got {}", kOp,
                    args.sequences->num_tokens(), N);
  if (H == 0 || HV % H != 0)
    throw UserError("{}: v: expected a multiple of the {} query heads as value heads, got {}", kOp, H, HV);
  const at::ScalarType type = args.q.scalar_type();
  const at::ScalarType wide = accumulation_type(type);
  const auto check = [&](const char* name, const at::Tensor& tensor, std::initializer_list<int64_t> shape,
                         std::initializer_list<at::ScalarType> dtypes) {
    check_shape(kOp, name, tensor, shape);
    check_dtype(kOp, name, tensor, dtypes);
    check_same_device(kOp, name, tensor, args.q);
  };
  check("k", args.k, {N, H, K}, {type});
  check("v", args.v, {N, HV, V}, {type});
  check("beta", args.beta, {N, HV}, {wide});
  if (args.write_key.defined()) check("write_key", args.write_key, {N, HV, K}, {type});
  if (args.initial_state.defined()) check("initial_state", args.initial_state, {S, HV, K, V}, {wide});
  if (args.log_decay.defined()) {
    if (args.log_decay.dim() != 3)
      check("log_decay", args.log_decay, {N, HV}, {wide});
    else if (type == wide)
      check("log_decay", args.log_decay, {N, HV, K}, {wide});
    else
      check("log_decay", args.log_decay, {N, HV, K}, {wide, type});
    // Only where looking at the values does not stall a device.
    if (args.log_decay.is_cpu() && args.log_decay.numel() > 0 &&
        args.log_decay.detach().max().item<double>() > kLogDecayRounding)
      throw UserError(
          "{}: log_decay: expected natural logarithms <= 0 of decay factors in (0, 1], got values up to {}",
          kOp, args.log_decay.detach().max().item<double>());
  }
  Problem problem = problem_of(args);
  problem.scale = args.scale.value_or(1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(K, 1))));
  return problem;
}

namespace {

// How a call was made; travels to the backward beside the tensors.
struct Settings : torch::CustomClassHolder {
  SequencesPtr sequences;
  double scale = 1;
  bool l2_normalize = true;
  bool keep = false;  // a backward may follow
};
using SettingsPtr = c10::intrusive_ptr<Settings>;

struct PreparedProblem {
  Problem problem;
  at::Tensor q_rstd;  // [N, H, 1], undefined without normalisation and where the kernels normalise
  at::Tensor k_rstd;  // [N, H, 1]
};

// `tensors`: q, k, v, beta, write_key, log_decay, initial_state
PreparedProblem prepared(const torch::autograd::variable_list& tensors, const Settings& settings) {
  PreparedProblem result{.problem = {.q = tensors[0],
                                     .k = tensors[1],
                                     .v = tensors[2],
                                     .beta = tensors[3],
                                     .write_key = tensors[4],
                                     .log_decay = tensors[5],
                                     .initial_state = tensors[6],
                                     .sequences = settings.sequences,
                                     .scale = settings.scale,
                                     .normalize = settings.l2_normalize},
                         .q_rstd = {},
                         .k_rstd = {}};
  if (!settings.l2_normalize || result.problem.on_kernel_path()) return result;
  const L2NormForward q = l2_norm_forward(tensors[0]);
  const L2NormForward k = l2_norm_forward(tensors[1]);
  result.problem.q = q.y;
  result.problem.k = k.y;
  result.problem.normalize = false;
  result.q_rstd = q.rstd;
  result.k_rstd = k.rstd;
  return result;
}

class DeltaRuleFunction : public torch::autograd::Function<DeltaRuleFunction> {
 public:
  // Absent tensors travel as empty optionals: autograd refuses undefined inputs.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const at::Tensor& q,
                                                const at::Tensor& k, const at::Tensor& v,
                                                const at::Tensor& beta,
                                                const std::optional<at::Tensor>& write_key,
                                                const std::optional<at::Tensor>& log_decay,
                                                const std::optional<at::Tensor>& initial_state,
                                                const SettingsPtr& settings) {
    const at::Tensor none;
    const torch::autograd::variable_list inputs = {
        q, k, v, beta, write_key.value_or(none), log_decay.value_or(none), initial_state.value_or(none)};
    const Problem problem = prepared(inputs, *settings).problem;
    const auto run = problem.on_kernel_path() ? forward_kernel
                     : problem.on_cpu_path()  ? forward_cpu
                                              : forward_aten;
    const Forward result = run(problem, settings->keep);
    ctx->set_materialize_grads(false);
    torch::autograd::variable_list saved = inputs;
    saved.insert(saved.end(), {result.inverse, result.error, result.states, result.q_rstd, result.k_rstd,
                               result.inverse_scale, result.pairs, result.gates, result.key_pairs,
                               result.decayed_rows, result.chunk_decay, result.anchored});
    ctx->save_for_backward(saved);
    ctx->saved_data["settings"] = at::IValue::make_capsule(settings);
    return {result.o, result.final_state};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list upstream) {
    if (!upstream[0].defined() && !upstream[1].defined()) return torch::autograd::variable_list(8);
    const auto saved = ctx->get_saved_variables();
    const c10::intrusive_ptr<torch::CustomClassHolder> capsule = ctx->saved_data["settings"].toCapsule();
    const PreparedProblem given = prepared(saved, static_cast<const Settings&>(*capsule));
    const Forward kept{.o = {},
                       .final_state = {},
                       .inverse = saved[7],
                       .error = saved[8],
                       .states = saved[9],
                       .q_rstd = saved[10],
                       .k_rstd = saved[11],
                       .inverse_scale = saved[12],
                       .pairs = saved[13],
                       .gates = saved[14],
                       .key_pairs = saved[15],
                       .decayed_rows = saved[16],
                       .chunk_decay = saved[17],
                       .anchored = saved[18]};
    const auto run = given.problem.on_kernel_path() ? backward_kernel
                     : given.problem.on_cpu_path()  ? backward_cpu
                                                    : backward_aten;
    const Gradients grads = run(given.problem, kept, upstream[0], upstream[1]);
    const at::ScalarType type = saved[0].scalar_type();
    const auto through_norm = [type](const at::Tensor& d_y, const at::Tensor& y, const at::Tensor& rstd) {
      return rstd.defined() ? l2_norm_backward(d_y, y, rstd) : d_y.to(type);
    };
    return {through_norm(grads.q, given.problem.q, given.q_rstd),
            through_norm(grads.k, given.problem.k, given.k_rstd),
            grads.v.to(type),
            grads.beta,
            grads.write_key.defined() ? grads.write_key.to(type) : grads.write_key,
            grads.log_decay.defined() ? grads.log_decay.to(saved[5].scalar_type()) : grads.log_decay,
            grads.initial_state,
            at::Tensor()};
  }
};

}  // namespace
}  // namespace delta_rule_detail

DeltaRuleOutput delta_rule(const DeltaRuleArgs& args) {
  delta_rule_detail::Problem problem = delta_rule_detail::checked(args);
  const auto settings = c10::make_intrusive<delta_rule_detail::Settings>();
  settings->sequences = args.sequences;
  settings->scale = problem.scale;
  settings->l2_normalize = args.l2_normalize;
  if (at::GradMode::is_enabled())
    for (const at::Tensor& input :
         {args.q, args.k, args.v, args.beta, args.write_key, args.log_decay, args.initial_state})
      settings->keep = settings->keep || (input.defined() && input.requires_grad());
  if (!settings->keep && !args.by_chunks && delta_rule_detail::on_step_path(problem)) {
    problem.normalize = args.l2_normalize;
    problem.overwrite = args.overwrite_initial_state;
    const delta_rule_detail::Forward step = delta_rule_detail::forward_step(problem);
    return {.o = step.o, .final_state = step.final_state};
  }
  const auto outputs = delta_rule_detail::DeltaRuleFunction::apply(
      args.q, args.k, args.v, args.beta, optional_input(args.write_key), optional_input(args.log_decay),
      optional_input(args.initial_state), settings);
  return {.o = outputs[0], .final_state = outputs[1]};
}

bool keeps_sequences_apart(const DeltaRuleArgs& args) {
  const delta_rule_detail::Problem problem = delta_rule_detail::problem_of(args);
  return problem.on_cpu_path() || problem.on_kernel_path() ||
         (!args.by_chunks && delta_rule_detail::on_step_path(problem));
}

}  // namespace osdn::ops
