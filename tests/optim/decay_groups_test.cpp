#include "optim/decay_groups.h"

#include "tests/support/test.h"

namespace osdn::optim {
namespace {

std::vector<ParameterSpec> a_model() {
  return {{.name = "model.embeddings.weight", .shape = {4, 2}, .group = 0},
          {.name = "model.layers.0.attn.q_proj.weight", .shape = {2, 2}, .group = 1},
          {.name = "model.layers.11.attn.q_proj.weight", .shape = {2, 2}, .group = 2},
          {.name = "model.layers.0.attn_norm.weight", .shape = {2}, .decay = false, .group = 3},
          {.name = "model.layers.11.attn.initial_scale",
           .shape = {2},
           .decay = false,
           .trainable = false,
           .group = 4},
          {.name = "model.norm.weight", .shape = {2}, .decay = false, .group = 5}};
}

TEST_CASE("every parameter is in the group that the optimizer treats it by, layers together",
          "[decay_groups]") {
  const ParameterArena arena(a_model(), {});
  const DecayGroups groups = decay_groups(arena, false);
  CHECK(groups.decayed.find("model.layers.*.attn.q_proj.weight") != std::string::npos);
  CHECK(groups.decayed.find("model.embeddings.weight") != std::string::npos);
  CHECK(groups.decayed.find("norm") == std::string::npos);
  CHECK(groups.decayed.find("q_proj") == groups.decayed.rfind("q_proj"));
  CHECK(groups.not_decayed.find("model.layers.*.attn_norm.weight") != std::string::npos);
  CHECK(groups.not_decayed.find("model.norm.weight") != std::string::npos);
  CHECK(groups.not_trained == "model.layers.*.attn.initial_scale");
}

TEST_CASE("decay_all leaves nothing trained without decay", "[decay_groups]") {
  const ParameterArena arena(a_model(), {});
  const DecayGroups groups = decay_groups(arena, true);
  CHECK(groups.not_decayed == "none");
  CHECK(groups.decayed.find("model.norm.weight") != std::string::npos);
}

}  // namespace
}  // namespace osdn::optim
