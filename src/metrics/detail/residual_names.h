// The residual fields with their published names, in the order of metrics.jsonl.
#pragma once

#include <array>

#include "metrics/residual.h"

namespace osdn::metrics::detail {

struct NamedResidual {
  const char* name;
  double ResidualFields::*value;
};

inline constexpr std::array<NamedResidual, 10> kResidualNames = {{
    {"q_geo", &ResidualFields::q_geo},
    {"q_geo_plain", &ResidualFields::q_geo_plain},
    {"q_floor_share", &ResidualFields::q_floor_share},
    {"beta_mean", &ResidualFields::beta_mean},
    {"write_strength_max", &ResidualFields::write_strength_max},
    {"d_mean", &ResidualFields::d_mean},
    {"d_min", &ResidualFields::d_min},
    {"d_max", &ResidualFields::d_max},
    {"d_at_box", &ResidualFields::d_at_box},
    {"retention_mean", &ResidualFields::retention_mean},
}};

}  // namespace osdn::metrics::detail
