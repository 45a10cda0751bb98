#include "apps/exchange.h"

#include <unistd.h>

#include <filesystem>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "checkpoint/layout.h"
#include "model/lm.h"
#include "optim/parameter_arena.h"
#include "tensor/torch.h"
#include "train/snapshot.h"

namespace osdn::apps {
namespace exchange_detail {

namespace fs = std::filesystem;

constexpr int64_t kSequences = 2;
constexpr int64_t kTokens = 96;
constexpr int64_t kStride = 7919;  // prime: ids spread over the vocabulary

}  // namespace exchange_detail

at::Tensor logits_of(const std::string& origin, const config::Model& model,
                     const std::vector<checkpoint::NamedTensor>& weights, const at::Tensor& ids) {
  const int64_t vocab_size = model.vocab_size.value();
  optim::ParameterArena arena(
      model::parameter_specs(model, vocab_size),
      {.device = at::kCPU, .compute = at::kFloat, .training = false, .decay_all = false});
  checkpoint::Loaded loaded;
  loaded.directory = origin;
  loaded.snapshot.weights = weights;
  train::restore_weights(loaded, arena);
  const model::LanguageModel lm(model, vocab_size, arena.source());
  const at::NoGradGuard no_grad;
  model::ForwardCall call{.sequences = ops::Sequences::equal(ids.size(0), ids.size(1), at::kCPU)};
  return lm.logits(lm.hidden(ids.reshape({-1}), call)).view({ids.size(0), ids.size(1), vocab_size});
}

at::Tensor fixed_input(int64_t vocab_size) {
  const at::Tensor position =
      at::arange(exchange_detail::kSequences * exchange_detail::kTokens, at::TensorOptions(at::kLong));
  return (position * exchange_detail::kStride + 1)
      .remainder(vocab_size)
      .view({exchange_detail::kSequences, exchange_detail::kTokens});
}

double relative_rms(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor a = actual.to(at::kDouble);
  const at::Tensor e = expected.to(at::kDouble);
  if (!at::isfinite(a).all().item<bool>() || !at::isfinite(e).all().item<bool>())
    return std::numeric_limits<double>::infinity();
  const double norm = e.norm().item<double>();
  const double difference = (a - e).norm().item<double>();
  return norm > 0 ? difference / norm : difference;
}

std::string absolute_new_path(const char* command, const std::string& path) {
  namespace fs = std::filesystem;
  fs::path whole = fs::absolute(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  if (fs::exists(fs::symlink_status(whole)))
    throw UserError("{}: --output {} exists; choose a name that is free, or remove it", command,
                    whole.string());
  return whole.string();
}

StagedDirectory::StagedDirectory(std::string target)
    : target_(std::move(target)), path_(fmt::format("{}.tmp-{}", target_, ::getpid())) {
  checkpoint::remove_tree(path_);
  create_directories(path_);
}

StagedDirectory::~StagedDirectory() {
  if (!published_) checkpoint::remove_tree(path_);
}

void StagedDirectory::publish() {
  sync_directory(path_);
  if (exchange_detail::fs::exists(exchange_detail::fs::symlink_status(target_)))
    throw UserError("{}: appeared while it was being written; nothing was changed", target_);
  durable_rename(path_, target_);
  published_ = true;
}

}  // namespace osdn::apps
