// The preconditioner scan as docs/ops/precond_scan.md has it, token after token in float64: what the kernels
// are held against.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/emulation/buffer.h"

namespace osdn::kernels::precond_scan_kernels_test {

using emulation_test::Numbers;

enum class Retention { kNone, kHead, kChannel };

struct Spec {
  std::vector<int64_t> offsets = {0, 40};
  int K = 128;
  int H = 1;
  int HV = 1;
  Retention retention = Retention::kNone;
  bool bf16 = true;
  bool beta_aware = true;
  bool divide_by_key_norm = false;
  bool anchored = false;
  bool normalize = true;
  bool detach = false;
  double box_min = 2.0 / 3;
  double box_max = 1.5;
  double eta = 1;
  double upstream = 1;      // size of the gradients that come in
  bool correlated = false;  // one direction with spikes and a little else, beta near 1

  int64_t tokens() const { return offsets.back(); }
  int64_t sequences() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

/// Inputs and the gradients that come in; numbers that the kernels' types hold exactly.
struct Problem {
  Spec spec;
  Numbers k;          // [N, H, K] before normalisation
  Numbers beta;       // [N, HV]
  Numbers retention;  // [N, HV] or [N, HV, K]
  Numbers initial;    // [HV, K]
  Numbers d_written;  // [N, HV, K]
  Numbers d_final;    // [S, HV, K]
};

struct Results {
  Numbers write_key;    // [N, HV, K]
  Numbers final_d;      // [S, HV, K]
  Numbers d_k;          // [N, HV, K] of k as given, by value head
  Numbers d_beta;       // [N, HV]
  Numbers d_retention;  // as retention
  Numbers d_initial;    // [S, HV, K]
  Numbers statistics;   // [13] in the order of ops/residual_stats.h
  double clipped = 0;   // share of the proposals that lay outside the box
};

/// With seed; the numbers are rounded to the kernels' types.
Problem make_problem(const Spec& spec, unsigned seed = 3);

/// `round`: of the unit key, through which gradients pass unchanged.
Results recurrence(const Problem& problem, const std::function<double(double)>& round);

/// To the keys' type.
double round_to_key(double x, bool bf16);

}  // namespace osdn::kernels::precond_scan_kernels_test
