// Forward and backward of whole models on the GPU: the gradients of the CPU, the same bits every time, from a
// CUDA graph too.
#include <vector>

#include "model/lm.h"
#include "ops/sequences.h"
#include "tensor/device_graph.h"
#include "tests/model/small_model.h"
#include "tests/support/test.h"

namespace osdn::model {
namespace training_cuda_test {

using test::SmallModel;

const at::Device kTrainingDevice(at::kCUDA, 0);

/// A batch of packed documents, with one of a single token and an empty one.
struct Batch {
  at::Tensor ids;      // [N]
  at::Tensor targets;  // [N]
  ops::SequencesPtr sequences;

  explicit Batch(at::Device device)
      : ids(test::random_ids(150, 1).to(device)),
        targets(test::random_ids(150, 2).to(device)),
        sequences(ops::Sequences::make({0, 70, 71, 71, 150}, device)) {}
};

/// Softmax attention's own backward is not under test here.
bool attends(const config::Model& model) {
  return config::is_attention_layer(model, 0) || config::is_attention_layer(model, 1);
}

/// Zeroes the gradients and runs forward and backward; the loss.
at::Tensor run(SmallModel& small, const Batch& batch) {
  small.arena().zero_gradients();
  ForwardCall call{.sequences = batch.sequences};
  const at::Tensor loss = small.model().loss(batch.ids, batch.targets, call);
  torch::autograd::backward({loss / 150.0}, {});
  return loss.detach();
}

TEST_CASE("loss and every gradient on the GPU are those of the CPU, for every backbone",
          "[training_cuda][cuda]") {
  for (const test::Variant& variant : test::variants()) {
    CAPTURE(variant.name);
    SmallModel on_cpu(variant.model);
    SmallModel on_gpu(variant.model, kTrainingDevice);
    const at::Tensor expected = run(on_cpu, Batch(at::kCPU));
    const at::Tensor actual = run(on_gpu, Batch(kTrainingDevice));
    test::check_close("loss", actual, expected, 1e-5);
    for (const auto& slot : on_cpu.arena().slots())
      // Sums of rounded products over two layers, in another order.
      test::check_close(slot.spec.name, on_gpu.arena().gradient(slot.spec.name),
                        on_cpu.arena().gradient(slot.spec.name), 1e-3);
  }
}

TEST_CASE(
    "forward and backward of a model on the GPU give the same bits every time, replayed from a graph too",
    "[training_cuda][cuda]") {
  const at::ScalarType compute = GENERATE(at::kBFloat16, at::kFloat);
  for (const test::Variant& variant : test::variants()) {
    if (attends(variant.model)) continue;
    CAPTURE(variant.name, c10::toString(compute));
    SmallModel small(variant.model, kTrainingDevice, /*training=*/true, compute);
    const Batch batch(kTrainingDevice);
    const at::Tensor loss = run(small, batch);
    const at::Tensor gradients = small.arena().gradients().clone();
    {
      const ForbidSynchronization forbid;
      run(small, batch);
    }
    CHECK(at::equal(small.arena().gradients(), gradients));
    at::Tensor recorded;
    DeviceGraph graph;
    graph.capture([&] { recorded = run(small, batch); });
    small.arena().gradients().fill_(std::nan(""));
    graph.replay();
    CHECK(at::equal(recorded, loss));
    CHECK(at::equal(small.arena().gradients(), gradients));
  }
}

TEST_CASE("recomputing layers in backward on the GPU gives the bits of keeping them",
          "[training_cuda][cuda]") {
  for (const test::Variant& variant : test::variants()) {
    if (attends(variant.model)) continue;
    CAPTURE(variant.name);
    SmallModel small(variant.model, kTrainingDevice, /*training=*/true, at::kBFloat16);
    const Batch batch(kTrainingDevice);
    run(small, batch);
    const at::Tensor gradients = small.arena().gradients().clone();
    for (const config::Recompute recompute : {config::Recompute::kMixer, config::Recompute::kBlock}) {
      small.arena().zero_gradients();
      ForwardCall call{.sequences = batch.sequences, .recompute = recompute};
      torch::autograd::backward({small.model().loss(batch.ids, batch.targets, call) / 150.0}, {});
      CHECK(at::equal(small.arena().gradients(), gradients));
    }
  }
}

}  // namespace training_cuda_test
}  // namespace osdn::model
