#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "apps/inspect_findings.h"
#include "base/error.h"
#include "base/fs.h"
#include "checkpoint/fla_config.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/model_files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/verify.h"
#include "config/yaml.h"
#include "model/lm.h"
#include "tensor/torch.h"

namespace osdn::apps {
namespace inspect_weights_detail {

int64_t num_elements(const checkpoint::TensorList& tensors) {
  int64_t count = 0;
  for (const auto& [name, tensor] : tensors) count += tensor.numel();
  return count;
}

/// As safetensors headers name it.
std::string dtype_name(at::ScalarType type) {
  if (type == at::kFloat) return "F32";
  if (type == at::kBFloat16) return "BF16";
  if (type == at::kHalf) return "F16";
  if (type == at::kDouble) return "F64";
  return c10::toString(type);
}

std::string dtypes(const checkpoint::TensorList& tensors) {
  std::map<std::string, int64_t> counts;
  for (const auto& [name, tensor] : tensors) ++counts[dtype_name(tensor.scalar_type())];
  std::string text;
  for (const auto& [name, count] : counts)
    text += fmt::format("{}{} of {}", text.empty() ? "" : ", ", count, name);
  return text;
}

/// NaN and infinity pass every digest; a run that goes on from them is lost all the same.
void check_finite(const std::string& path, const checkpoint::TensorList& tensors, Finding* finding) {
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.is_floating_point()) continue;
    const int64_t bad = tensor.numel() - at::isfinite(tensor).sum().item<int64_t>();
    if (bad > 0)
      finding->problems.push_back(
          fmt::format("{}: {}: {} of {} elements are NaN or infinite", path, name, bad, tensor.numel()));
  }
}

/// Names and shapes of the weights against those of the model that the configuration describes.
void check_shapes(const std::string& path, const config::Model& model, int64_t vocab_size,
                  const checkpoint::TensorList& tensors, Finding* finding) {
  std::map<std::string, std::vector<int64_t>> found;
  for (const auto& [name, tensor] : tensors) found[name] = tensor.sizes().vec();
  for (const ParameterSpec& spec : model::parameter_specs(model, vocab_size)) {
    const auto at = found.find(spec.name);
    if (at == found.end())
      finding->problems.push_back(
          fmt::format("{}: has no {}, which its configuration asks for", path, spec.name));
    else if (at->second != spec.shape)
      finding->problems.push_back(fmt::format("{}: {}: expected shape {}, got {}", path, spec.name,
                                              Json(spec.shape).dump(), Json(at->second).dump()));
    if (at != found.end()) found.erase(at);
  }
  for (const auto& [name, shape] : found)
    finding->problems.push_back(
        fmt::format("{}: has {}, which its configuration has no place for", path, name));
}

/// Manifest and digests have passed: what the files say.
void read_checkpoint(const std::string& path, Finding* finding) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(path);
  const Json state = checkpoint::read_state(path, manifest);
  finding->facts["step"] = manifest.step;
  finding->facts["holds"] =
      manifest.num_optimizer_shards == 0 ? "weights only" : "weights and optimiser state";
  if (manifest.num_optimizer_shards > 0) finding->facts["written_by_ranks"] = manifest.num_optimizer_shards;
  if (state.contains("tokens")) finding->facts["tokens"] = state["tokens"];
  if (state.contains("skipped_total")) finding->facts["skipped_steps"] = state["skipped_total"];
  uint64_t size_bytes = 0;
  for (const checkpoint::ManifestFile& file : manifest.files) {
    size_bytes += file.size_bytes;
    if (file.name == checkpoint::kStateFile) continue;
    const std::string name = path + "/" + file.name;
    // One file at a time: an optimiser's moments are twice the model.
    const checkpoint::SafetensorsFile content = checkpoint::read_safetensors(name);
    check_finite(name, content.tensors, finding);
    if (file.name != checkpoint::kModelFile) continue;
    finding->facts["tensors"] = content.tensors.size();
    finding->facts["parameters"] = num_elements(content.tensors);
    if (!state.contains("config")) continue;
    const config::Config config =
        config::load_text(state["config"].get<std::string>(), path + "/" + checkpoint::kStateFile, {});
    finding->facts["run"] = config.run.name;
    if (config.model.vocab_size)
      check_shapes(name, config.model, *config.model.vocab_size, content.tensors, finding);
  }
  finding->facts["bytes"] = size_bytes;
}

}  // namespace inspect_weights_detail

void inspect_safetensors(const std::string& path, std::vector<Finding>* findings) {
  Finding finding = {.path = path, .kind = "safetensors file"};
  try {
    const checkpoint::SafetensorsFile file = checkpoint::read_safetensors(path);
    finding.facts["tensors"] = file.tensors.size();
    finding.facts["elements"] = inspect_weights_detail::num_elements(file.tensors);
    Json& listing = finding.facts["listing"] = Json::object();
    for (const auto& [name, tensor] : file.tensors)
      listing[name] = fmt::format("{} {}", inspect_weights_detail::dtype_name(tensor.scalar_type()),
                                  Json(tensor.sizes().vec()).dump());
    inspect_weights_detail::check_finite(path, file.tensors, &finding);
    finding.remarks.emplace_back("no digest to compare with: those of a checkpoint are in its manifest.json");
  } catch (const DataError& failure) {
    finding.problems.emplace_back(failure.what());
  }
  findings->push_back(std::move(finding));
}

void inspect_checkpoint(const std::string& path, std::vector<Finding>* findings) {
  Finding finding = {.path = path, .kind = "checkpoint"};
  const checkpoint::Verdict verdict = checkpoint::verify(path);
  if (verdict.step >= 0) finding.facts["step"] = verdict.step;
  if (!verdict.intact) {
    finding.problems.push_back(verdict.problem);
  } else {
    try {
      inspect_weights_detail::read_checkpoint(path, &finding);
    } catch (const Error& failure) {
      if (failure.code() == ExitCode::kEnvironmentError) throw;
      finding.problems.emplace_back(failure.what());
    } catch (const Json::exception& failure) {
      finding.problems.push_back(fmt::format("{}/{}: {}", path, checkpoint::kStateFile, failure.what()));
    }
  }
  findings->push_back(std::move(finding));
}

void inspect_checkpoints(const std::string& path, std::vector<Finding>* findings) {
  Finding folder = {.path = path, .kind = "checkpoints"};
  std::vector<std::string> strangers;
  const auto steps = checkpoint::list_steps(path, &strangers);
  folder.facts["checkpoints"] = steps.size();
  for (const std::string& stranger : strangers) folder.remarks.push_back(stranger + "; ignored");
  for (const std::string& name : checkpoint::list_names(path))
    if (checkpoint::is_leftover(name))
      folder.remarks.push_back(name + ": being written, or left by a killed process; ignored");
  const std::string latest = path + "/" + checkpoint::kLatestFile;
  if (std::filesystem::exists(latest)) {
    std::string name = read_file(latest);
    while (!name.empty() && name.back() == '\n') name.pop_back();
    folder.facts["latest"] = name;
    if (!std::filesystem::exists(path + "/" + name))
      folder.remarks.push_back("latest names a checkpoint that is not there; resuming does not need it");
  }
  findings->push_back(std::move(folder));
  for (const checkpoint::StepEntry& entry : steps) inspect_checkpoint(path + "/" + entry.name, findings);
}

void inspect_model_directory(const std::string& path, std::vector<Finding>* findings) {
  Finding finding = {.path = path, .kind = "exchange directory"};
  try {
    const checkpoint::ModelFiles files = checkpoint::read_model_files(path);
    finding.facts["weight_files"] = files.digests.size();
    finding.facts["tensors"] = files.tensors.size();
    finding.facts["elements"] = inspect_weights_detail::num_elements(files.tensors);
    finding.facts["dtypes"] = inspect_weights_detail::dtypes(files.tensors);
    inspect_weights_detail::check_finite(path, files.tensors, &finding);
    const std::string config = path + "/config.json";
    checkpoint::FlaModel model = checkpoint::parse_fla_config(config, read_file(config), {});
    finding.facts["model_type"] = model.model_type;
    checkpoint::TensorList tensors = files.tensors;
    checkpoint::take_retention_buffers(path, &tensors, &model.model);
    inspect_weights_detail::check_shapes(path, model.model, model.model.vocab_size.value(), tensors,
                                         &finding);
    finding.remarks.emplace_back("the format keeps no digests: a changed weight does not show");
  } catch (const DataError& failure) {
    finding.problems.emplace_back(failure.what());
  } catch (const UserError& refusal) {
    // Another architecture, say: whole, but not for this program.
    finding.remarks.emplace_back(refusal.what());
  }
  findings->push_back(std::move(finding));
}

}  // namespace osdn::apps
