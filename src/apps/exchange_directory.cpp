#include "apps/exchange_directory.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "checkpoint/model_files.h"
#include "model/lm.h"
#include "tensor/torch.h"

namespace osdn::apps {
namespace exchange_directory_detail {

constexpr const char* kEmbeddings = "model.embeddings.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr uint64_t kMaxConfigBytes = 16'000'000;

std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      return c10::toString(type);
  }
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && at::equal(a, b);
}

/// The tensors of the files by name; what the model takes is moved out, what remains is refused.
class Tensors {
 public:
  Tensors(std::string directory, checkpoint::TensorList&& tensors) : directory_(std::move(directory)) {
    for (auto& [name, tensor] : tensors) by_name_.emplace(name, std::move(tensor));
  }
  const at::Tensor* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &found->second;
  }
  size_t size() const { return by_name_.size(); }
  void drop(const std::string& name) { by_name_.erase(name); }
  void put(const std::string& name, at::Tensor tensor) { by_name_[name] = std::move(tensor); }

  /// fp32, checked; the stored tensor is released.
  at::Tensor take(const ParameterSpec& spec) {
    const auto found = by_name_.find(spec.name);
    if (found == by_name_.end())
      throw DataError("{}: tensor {} {} is missing", directory_, spec.name,
                      c10::str(at::IntArrayRef(spec.shape)));
    at::Tensor stored = std::move(found->second);
    by_name_.erase(found);
    // Some code bases keep the rates of the decay as [1, 1, heads, 1].
    const std::string rates = ".attn.A_log";
    if (spec.name.size() > rates.size() && stored.dim() == 4 && stored.numel() == spec.num_elements() &&
        spec.name.compare(spec.name.size() - rates.size(), rates.size(), rates) == 0)
      stored = stored.reshape(spec.shape);
    if (stored.sizes() != at::IntArrayRef(spec.shape))
      throw DataError("{}: tensor {}: expected shape {} by config.json, got {}", directory_, spec.name,
                      c10::str(at::IntArrayRef(spec.shape)), c10::str(stored.sizes()));
    const at::ScalarType type = stored.scalar_type();
    if (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf)
      throw DataError("{}: tensor {}: expected dtype F32, BF16 or F16, got {}", directory_, spec.name,
                      c10::toString(type));
    at::Tensor value = stored.to(at::kFloat);
    if (!at::isfinite(value).all().item<bool>())
      throw DataError("{}: tensor {}: holds NaN or infinity", directory_, spec.name);
    return value;
  }
  void refuse_rest() const {
    if (by_name_.empty()) return;
    throw DataError("{}: tensor {}{} {} no place in the model that config.json describes", directory_,
                    by_name_.begin()->first,
                    by_name_.size() == 1 ? "" : fmt::format(" (and {} more)", by_name_.size() - 1),
                    by_name_.size() == 1 ? "has" : "have");
  }

 private:
  std::string directory_;
  std::map<std::string, at::Tensor> by_name_;
};

/// Tied and untied in every combination of flag, option and file; nothing is tied or untied unasked.
void settle_head(const std::string& directory, const std::optional<bool>& wanted, config::Model* model,
                 Tensors* tensors) {
  const bool stated = model->tie_embeddings;
  if (wanted) model->tie_embeddings = *wanted;
  const at::Tensor* head = tensors->find(kHead);
  const at::Tensor* embeddings = tensors->find(kEmbeddings);
  if (model->tie_embeddings) {
    if (!head) return;
    if (!same_bits(*head, *embeddings))
      throw UserError("{}: {} differs from {}, but {}; pass --tie-embeddings false to keep both", directory,
                      kHead, kEmbeddings,
                      wanted ? "--tie-embeddings true asks for one" : "tie_word_embeddings is true");
    tensors->drop(kHead);
    return;
  }
  if (head) return;
  if (wanted && stated) {
    tensors->put(kHead, embeddings->clone());  // untied by request: both start equal
    return;
  }
  throw UserError(
      "{}: tie_word_embeddings is false, but {} is missing; pass --tie-embeddings true if the embedding is "
      "the "
      "head",
      directory, kHead);
}

/// Files from before d0 was a parameter lack it; what it was then, the user must say.
void fill_initial_scale(const std::string& directory, const std::optional<double>& value,
                        const ParameterSpec& spec, Tensors* tensors) {
  const std::string end = ".attn.initial_scale";
  const bool is_start =
      spec.name.size() > end.size() && spec.name.compare(spec.name.size() - end.size(), end.size(), end) == 0;
  if (!is_start || tensors->find(spec.name)) return;
  if (!value)
    throw UserError(
        "{}: tensor {} is missing; pass --initial-scale VALUE (0 for checkpoints from before it was a "
        "parameter)",
        directory, spec.name);
  tensors->put(spec.name, at::full(spec.shape, *value, at::TensorOptions(at::kFloat)));
}

/// What config.json claims is bounded by what the files hold, before anything is made by it.
void check_extent(const std::string& directory, const config::Model& model, const Tensors& tensors) {
  if (static_cast<uint64_t>(model.num_layers) > tensors.size())
    throw DataError("{}: config.json says num_hidden_layers {}, but the files hold {} tensors", directory,
                    model.num_layers, tensors.size());
  const at::Tensor* embeddings = tensors.find(kEmbeddings);
  const std::vector<int64_t> expected = {model.vocab_size.value(), model.hidden_size};
  if (!embeddings)
    throw DataError("{}: tensor {} {} is missing", directory, kEmbeddings,
                    c10::str(at::IntArrayRef(expected)));
  if (embeddings->sizes() != at::IntArrayRef(expected))
    throw DataError("{}: tensor {}: expected shape {} by config.json, got {}", directory, kEmbeddings,
                    c10::str(at::IntArrayRef(expected)), c10::str(embeddings->sizes()));
}

std::string read_config_text(const std::string& path) {
  std::error_code failure;
  const auto bytes = std::filesystem::file_size(path, failure);
  if (failure)
    throw UserError("{}: expected a model directory with config.json ({})", path, failure.message());
  if (bytes > kMaxConfigBytes) throw DataError("{}: {} bytes are no config.json", path, bytes);
  return read_file(path);
}

}  // namespace exchange_directory_detail

ExchangeDirectory read_exchange_directory(const std::string& directory, const ExchangeReadOptions& options) {
  namespace detail = exchange_directory_detail;
  ExchangeDirectory read;
  const std::string config_path = directory + "/config.json";
  const std::string text = detail::read_config_text(config_path);
  read.fla = checkpoint::parse_fla_config(config_path, text, options.ignored_keys);
  checkpoint::ModelFiles files = checkpoint::read_model_files(directory);
  read.digests = std::move(files.digests);
  read.digests.emplace_back("config.json", digest(text).hex());

  std::map<at::ScalarType, int64_t> elements;  // by dtype
  std::vector<std::string> rounded;            // parameters that belong in fp32 and are not
  for (const auto& [name, tensor] : files.tensors) {
    elements[tensor.scalar_type()] += tensor.numel();
    if (tensor.scalar_type() != at::kFloat && checkpoint::stays_float32(name)) rounded.push_back(name);
  }
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != elements.end()) read.dtype = detail::dtype_name(most->first);
  if (!rounded.empty())
    read.warnings.push_back(fmt::format(
        "{}: {} of the tensors that belong in float32 are stored in less (the first: {}); taken as "
        "they are, their rounding cannot be undone",
        directory, rounded.size(), rounded.front()));

  config::Model& model = read.fla.model;
  checkpoint::take_retention_buffers(directory, &files.tensors, &model);
  detail::Tensors tensors(directory, std::move(files.tensors));
  detail::check_extent(directory, model, tensors);
  detail::settle_head(directory, options.tie_embeddings, &model, &tensors);
  for (const ParameterSpec& spec : model::parameter_specs(model, model.vocab_size.value())) {
    detail::fill_initial_scale(directory, options.initial_scale, spec, &tensors);
    read.weights.push_back({spec.name, tensors.take(spec)});
  }
  tensors.refuse_rest();
  return read;
}

}  // namespace osdn::apps
