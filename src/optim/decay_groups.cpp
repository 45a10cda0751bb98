#include "optim/decay_groups.h"

#include <algorithm>
#include <sstream>
#include <vector>

namespace osdn::optim {
namespace decay_groups_detail {

/// model.layers.7.attn.q_proj.weight -> model.layers.*.attn.q_proj.weight
std::string for_all_layers(const std::string& name) {
  std::istringstream parts(name);
  std::string result;
  for (std::string part; std::getline(parts, part, '.');) {
    const bool is_number = part.find_first_not_of("0123456789") == std::string::npos;
    result += (result.empty() ? "" : ".") + (is_number ? "*" : part);
  }
  return result;
}

void add(const std::string& name, std::vector<std::string>* names) {
  if (std::find(names->begin(), names->end(), name) == names->end()) names->push_back(name);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

}  // namespace decay_groups_detail

DecayGroups decay_groups(const ParameterArena& arena, bool decay_all) {
  namespace detail = decay_groups_detail;
  std::vector<std::string> decayed;
  std::vector<std::string> not_decayed;
  std::vector<std::string> not_trained;
  for (const ParameterArena::Slot& slot : arena.slots()) {
    const bool decays = slot.spec.decay || decay_all;
    detail::add(detail::for_all_layers(slot.spec.name), !slot.spec.trainable ? &not_trained
                                                        : decays             ? &decayed
                                                                             : &not_decayed);
  }
  return {.decayed = detail::joined(decayed),
          .not_decayed = detail::joined(not_decayed),
          .not_trained = detail::joined(not_trained)};
}

}  // namespace osdn::optim
