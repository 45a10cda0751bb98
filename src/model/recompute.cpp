#include "model/recompute.h"

#include <memory>
#include <utility>

#include "tensor/torch.h"

namespace osdn::model {
namespace {

struct HeldFunction : torch::CustomClassHolder {
  explicit HeldFunction(TensorFunction held) : function(std::move(held)) {}
  TensorFunction function;
};

struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& input,
                            const TensorFunction* first, const c10::intrusive_ptr<HeldFunction>& again) {
    ctx->save_for_backward({input});
    ctx->saved_data["again"] = c10::IValue::make_capsule(again);
    return (*first)(input);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto held = ctx->saved_data["again"].toCapsule();
    const at::AutoGradMode with_grad(true);
    const at::Tensor input = ctx->get_saved_variables()[0].detach().requires_grad_(true);
    const at::Tensor output = static_cast<HeldFunction*>(held.get())->function(input);
    // backward() rather than grad(): weight gradients reach their sinks, which no graph input names.
    torch::autograd::backward({output}, {gradients[0]}, /*retain_graph=*/false);
    return {input.grad(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor run_and_recompute(const at::Tensor& input, const TensorFunction& first, TensorFunction again) {
  return Recompute::apply(input, &first, c10::make_intrusive<HeldFunction>(std::move(again)));
}

}  // namespace osdn::model
