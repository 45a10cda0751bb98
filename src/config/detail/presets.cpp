#include "config/detail/presets.h"

namespace osdn::config::detail {
namespace {

// The authors use d0 as it was learned, also outside the box.
Osdn authors_values(double step_size, std::array<double, 2> box, Hypergradient hypergradient,
                    double initial_scale, Retention retention = Retention::kNone) {
  Osdn osdn;
  osdn.step_size = step_size;
  osdn.box = box;
  osdn.hypergradient = hypergradient;
  osdn.initial_scale = initial_scale;
  osdn.clamp_initial_scale = false;
  osdn.retention = retention;
  return osdn;
}

std::vector<Preset> make_presets() {
  constexpr std::array<double, 2> kDefaultBox = {2.0 / 3.0, 1.5};
  constexpr std::array<double, 2> kNoUpperLimit = {0.0, 1e9};

  Osdn apf;
  apf.retention = Retention::kOwnGate;

  Osdn run2 = authors_values(1.0, {0.0, 2.0}, Hypergradient::kBetaFree, 0.0);
  run2.learn_initial_scale = false;

  Osdn apf_authors = authors_values(1.0, kNoUpperLimit, Hypergradient::kBetaFree, 0.0, Retention::kOwnGate);
  apf_authors.allow_unstable = true;

  Osdn kda_detach = authors_values(0.01, {0.0, 1.2}, Hypergradient::kBetaAware, 1.0);
  kda_detach.detach = true;

  const auto gated = [&](Retention retention) {
    return authors_values(0.003, kDefaultBox, Hypergradient::kBetaAware, 1.0, retention);
  };

  std::vector<Preset> all = {
      {"deltanet", "the plain backbone, no preconditioned write", std::nullopt},
      {"osdn", "this project's default: beta-aware, d starts at 1", Osdn{}},
      {"osdn_apf", "osdn with the own retention gate (adaptive preconditioner forgetting)", apf},
      {"osdn_authors_run2", "the authors' OS-DN row at 340M: beta-free, d0 fixed at 0", run2},
      {"osdn_apf_authors", "the authors' OS-DN-APF row: beta-free, no upper limit, d0 learned from 0",
       apf_authors},
      {"osdn_authors_may", "the authors' later DeltaNet configuration: beta-free, small step",
       authors_values(0.003, kDefaultBox, Hypergradient::kBetaFree, 1.0)},
      {"os_gdn", "the authors' OS-GDN row", gated(Retention::kNone)},
      {"os_gdn_apf_stategate", "the authors' OS-GDN-APF row, retention tied to the state's gate",
       gated(Retention::kStateGate)},
      {"os_gdn_apf_own", "the authors' OS-GDN-APF with a gate of its own", gated(Retention::kOwnGate)},
      {"os_kda_detach", "the authors' OS-KDA row: no gradient through d", kda_detach},
      {"os_kda_apf", "the authors' OS-KDA-APF row", gated(Retention::kOwnGate)},
  };
  for (Preset& preset : all)
    if (preset.osdn) preset.osdn->preset = preset.name;
  return all;
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = make_presets();
  return all;
}

const Preset* find_preset(std::string_view name) {
  for (const Preset& preset : presets())
    if (preset.name == name) return &preset;
  return nullptr;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return names;
}

}  // namespace osdn::config::detail
