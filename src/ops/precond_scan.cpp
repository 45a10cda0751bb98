#include "ops/precond_scan.h"

#include "base/error.h"
#include "ops/detail/precond_scan.h"
#include "ops/l2_norm.h"
#include "tensor/check.h"
#include "tensor/gradient.h"
#include "tensor/torch.h"

namespace osdn::ops {
namespace precond_scan_detail {

void check(const PrecondScanArgs& args) {
  constexpr const char* kOp = "precond_scan";
  if (!args.sequences)
    throw UserError("{}: sequences: expected the offsets of the packed sequences, got none", kOp);
  check_shape(kOp, "k", args.k, {args.sequences->num_tokens(), -1, -1});
  check_dtype(kOp, "k", args.k, {at::kFloat, at::kBFloat16, at::kDouble});
  const int64_t N = args.k.size(0);
  const int64_t H = args.k.size(1);
  const int64_t K = args.k.size(2);
  const at::ScalarType wide = accumulation_type(args.k.scalar_type());
  const auto check_one = [&](const char* name, const at::Tensor& tensor,
                             std::initializer_list<int64_t> shape) {
    check_shape(kOp, name, tensor, shape);
    check_dtype(kOp, name, tensor, {wide});
    check_same_device(kOp, name, tensor, args.k);
  };
  check_one("beta", args.beta, {N, -1});
  const int64_t HV = args.beta.size(1);
  if (H == 0 || HV % H != 0)
    throw UserError("{}: beta: expected a multiple of the {} key heads as value heads, got {}", kOp, H, HV);
  if (args.retention.defined() && args.retention.dim() == 3)
    check_one("retention", args.retention, {N, HV, K});
  if (args.retention.defined() && args.retention.dim() != 3) check_one("retention", args.retention, {N, HV});
  check_shape(kOp, "initial_scale", args.initial_scale.value, {HV, K});
  check_same_device(kOp, "initial_scale", args.initial_scale.value, args.k);
  if (args.carried.defined()) check_one("carried", args.carried, {args.sequences->num_sequences(), HV, K});
  const PrecondScanOptions& options = args.options;
  if (!(options.box_min <= options.box_max))
    throw UserError("{}: box: expected a lower bound of at most the upper one, got [{}, {}]", kOp,
                    options.box_min, options.box_max);
}

namespace {

// How a call was made; travels to the backward beside the tensors. The sink is no saved variable: it changes
// between the two passes by design.
struct Settings : torch::CustomClassHolder {
  SequencesPtr sequences;
  PrecondScanOptions options;
  at::Tensor sink;  // [HV, K] or undefined
  bool keep = false;
  bool collect_statistics = false;
};
using SettingsPtr = c10::intrusive_ptr<Settings>;

struct NormalizedProblem {
  Problem problem;
  at::Tensor unit;  // [N, H, K] the normalised key in the activation dtype
  at::Tensor rstd;  // [N, H, 1], undefined without normalisation and where the kernels normalise
};

// `tensors`: k, beta, retention, d0 [HV, K], carried
NormalizedProblem normalized(const torch::autograd::variable_list& tensors, const Settings& settings) {
  const at::ScalarType wide = accumulation_type(tensors[0].scalar_type());
  NormalizedProblem result;
  const bool in_kernel = Problem::on_kernel_path(tensors[0]);
  result.unit = tensors[0];
  if (settings.options.l2_normalize && !in_kernel) {
    const L2NormForward norm = l2_norm_forward(tensors[0]);
    result.unit = norm.y;
    result.rstd = norm.rstd;
  }
  at::Tensor initial = tensors[4];  // [HV, K] or [S, HV, K]
  if (!initial.defined()) {
    initial = tensors[3].to(wide);
    if (settings.options.clamp_initial)
      initial = initial.clamp(settings.options.box_min, settings.options.box_max);
  }
  result.problem = {.k = in_kernel ? tensors[0] : result.unit.to(wide).contiguous(),
                    .beta = tensors[1].contiguous(),
                    .retention = tensors[2].defined() ? tensors[2].contiguous() : tensors[2],
                    .initial = initial.contiguous(),
                    .sequences = settings.sequences,
                    .options = settings.options};
  return result;
}

class PrecondScanFunction : public torch::autograd::Function<PrecondScanFunction> {
 public:
  // Absent tensors travel as empty optionals: autograd refuses undefined inputs.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const at::Tensor& k,
                                                const at::Tensor& beta,
                                                const std::optional<at::Tensor>& retention,
                                                const at::Tensor& initial_scale,
                                                const std::optional<at::Tensor>& carried,
                                                const std::optional<at::Tensor>& /*anchor*/,
                                                const SettingsPtr& settings) {
    const at::Tensor none;
    torch::autograd::variable_list saved = {k, beta, retention.value_or(none), initial_scale,
                                            carried.value_or(none)};
    const NormalizedProblem given = normalized(saved, *settings);
    const auto run = Problem::on_kernel_path(k) ? forward_kernel : k.is_cpu() ? forward_cpu : forward_aten;
    const Forward result = run(given.problem, settings->keep, settings->collect_statistics);
    ctx->set_materialize_grads(false);
    saved.insert(saved.end(), result.kept.begin(), result.kept.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["settings"] = at::IValue::make_capsule(settings);
    torch::autograd::variable_list outputs = {result.write_key.to(k.scalar_type()), result.final_d, k};
    if (settings->collect_statistics) {
      outputs.push_back(result.statistics);
      ctx->mark_non_differentiable({result.statistics});
    }
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list upstream) {
    torch::autograd::variable_list result(7);
    if (!upstream[0].defined() && !upstream[1].defined()) {
      result[0] = upstream[2];
      return result;
    }
    const auto saved = ctx->get_saved_variables();
    const c10::intrusive_ptr<torch::CustomClassHolder> capsule = ctx->saved_data["settings"].toCapsule();
    const auto& settings = static_cast<const Settings&>(*capsule);
    const NormalizedProblem given = normalized(saved, settings);
    const std::vector<at::Tensor> kept = {saved.begin() + 5, saved.end()};
    Gradients grads;
    if (Problem::on_kernel_path(saved[0])) {
      grads = backward_kernel(given.problem, kept, upstream[0], upstream[1], upstream[2]);
      result[0] = grads.k;
    } else {
      const auto run = saved[0].is_cpu() ? backward_cpu : backward_aten;
      grads = run(given.problem, kept, upstream[0], upstream[1]);
      result[0] = given.rstd.defined() ? l2_norm_backward(grads.k, given.unit, given.rstd)
                                       : grads.k.to(saved[0].scalar_type());
      if (upstream[2].defined()) result[0] = result[0] + upstream[2];
    }
    if (settings.options.detach) return result;
    result[1] = grads.beta;
    result[2] = grads.retention;
    if (saved[4].defined())
      result[4] = grads.initial;
    else
      result[3] =
          deliver_gradient(settings.sink, initial_scale_gradient(grads.initial, saved[3], settings.options),
                           saved[3].scalar_type());
    return result;
  }

 private:
  // Sum over the sequences, in their order; zero where the clamp to the box was active. [S, HV, K] -> [HV, K]
  static at::Tensor initial_scale_gradient(const at::Tensor& per_sequence, const at::Tensor& initial_scale,
                                           const PrecondScanOptions& options) {
    const auto narrow = [](const at::Tensor& x) { return x.is_cuda() && x.scalar_type() == at::kFloat; };
    if (narrow(per_sequence) && narrow(initial_scale))
      return initial_gradient_kernel(per_sequence, initial_scale, options);
    at::Tensor sum = sum_rows(per_sequence.flatten(1)).view_as(initial_scale);
    if (!options.clamp_initial) return sum;
    const at::Tensor d0 = initial_scale.to(sum.scalar_type());
    return sum.masked_fill((d0 < options.box_min) | (d0 > options.box_max), 0);
  }
};

}  // namespace
}  // namespace precond_scan_detail

PrecondScanOutput precond_scan(const PrecondScanArgs& args) {
  precond_scan_detail::check(args);
  const auto settings = c10::make_intrusive<precond_scan_detail::Settings>();
  settings->sequences = args.sequences;
  settings->options = args.options;
  settings->sink = args.initial_scale.sink;
  settings->collect_statistics = args.collect_statistics;
  const at::Tensor anchor = gradient_anchor(args.initial_scale);
  if (at::GradMode::is_enabled())
    for (const at::Tensor& input :
         {args.k, args.beta, args.retention, args.initial_scale.value, args.carried, anchor})
      settings->keep = settings->keep || (input.defined() && input.requires_grad());
  const auto outputs = precond_scan_detail::PrecondScanFunction::apply(
      args.k, args.beta, optional_input(args.retention), args.initial_scale.value,
      optional_input(args.carried), optional_input(anchor), settings);
  return {.write_key = outputs[0],
          .read_key = outputs[2],
          .final_d = outputs[1],
          .statistics = args.collect_statistics ? outputs[3] : at::Tensor()};
}

}  // namespace osdn::ops
