// The recurrence that the scan's kernels are held against, itself: its gradients are those of its outputs.
#include "tests/emulation/precond_scan_recurrence.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "tests/support/catch.h"

namespace osdn::kernels::precond_scan_kernels_test {

double round_to_key(double x, bool bf16) {
  const auto single = static_cast<float>(x);
  return bf16 ? static_cast<double>(__bfloat162float(__float2bfloat16_rn(single))) : single;
}

Problem make_problem(const Spec& spec, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const auto fill = [&](size_t size, auto&& draw) {
    Numbers out(size);
    for (double& x : out) x = static_cast<float>(draw());
    return out;
  };
  const auto pairs = static_cast<size_t>(spec.tokens() * spec.HV);
  const auto K = static_cast<size_t>(spec.K);
  const double key_scale = spec.normalize ? 1.0 : 1.0 / std::sqrt(spec.K);
  Problem made;
  made.spec = spec;
  made.k = fill(static_cast<size_t>(spec.tokens() * spec.H) * K,
                [&] { return round_to_key(normal(random) * key_scale, spec.bf16); });
  made.beta = fill(pairs, [&] { return 1 / (1 + std::exp(-normal(random))); });
  made.retention = fill(spec.retention == Retention::kChannel ? pairs * K : pairs,
                        [&] { return 1 - 0.01 * uniform(random); });
  made.initial = fill(spec.HV * K, [&] {
    return std::clamp(0.5 + uniform(random), static_cast<double>(static_cast<float>(spec.box_min)),
                      static_cast<double>(static_cast<float>(spec.box_max)));
  });
  made.d_written = fill(pairs * K, [&] { return round_to_key(normal(random) * spec.upstream, spec.bf16); });
  made.d_final = fill(static_cast<size_t>(spec.sequences() * spec.HV) * K,
                      [&] { return normal(random) * spec.upstream; });
  if (spec.correlated) {
    for (size_t i = 0; i < made.k.size(); ++i)
      made.k[i] = round_to_key(std::exp(-0.1 * static_cast<double>(i % K)) + 0.05 * made.k[i], spec.bf16);
    for (double& x : made.beta) x = static_cast<float>(0.9 + 0.1 * x);
  }
  return made;
}

namespace {

/// One token of one value head: what the reverse needs of it.
struct Step {
  Numbers key, d, within;  // [K]: unit key; d that it writes with; 1 where the proposal lies in the box
  double rstd, beta, s, plain, norm;
};

class Chain {
 public:
  Chain(const Problem& problem, const std::function<double(double)>& round, int64_t sequence, int head,
        Results& out)
      : problem_(problem),
        spec_(problem.spec),
        round_(round),
        first_(spec_.offsets[sequence]),
        last_(spec_.offsets[sequence + 1]),
        head_(head),
        state_(static_cast<size_t>(sequence * spec_.HV + head) * spec_.K),
        out_(out) {}

  void run() {
    Numbers d(problem_.initial.begin() + head_ * spec_.K, problem_.initial.begin() + (head_ + 1) * spec_.K);
    for (int64_t t = first_; t < last_; ++t) forward(t, d);
    std::copy(d.begin(), d.end(), out_.final_d.begin() + static_cast<int64_t>(state_));
    Numbers lambda(problem_.d_final.begin() + static_cast<int64_t>(state_),
                   problem_.d_final.begin() + static_cast<int64_t>(state_) + spec_.K);
    for (int64_t t = last_ - 1; t >= first_; --t) reverse(t, steps_[t - first_], lambda);
    std::copy(lambda.begin(), lambda.end(), out_.d_initial.begin() + static_cast<int64_t>(state_));
  }

 private:
  size_t pair(int64_t t) const { return static_cast<size_t>(t * spec_.HV + head_); }
  double retention(int64_t t, int i) const {
    if (spec_.retention == Retention::kNone) return 1;
    return problem_.retention[spec_.retention == Retention::kHead ? pair(t) : pair(t) * spec_.K + i];
  }

  void forward(int64_t t, Numbers& d) {
    const int K = spec_.K;
    const double lo = static_cast<float>(spec_.box_min);
    const double hi = static_cast<float>(spec_.box_max);
    const double* given = &problem_.k[static_cast<size_t>(t * spec_.H + head_ / (spec_.HV / spec_.H)) * K];
    double square = 1e-6;
    for (int i = 0; i < K; ++i) square += given[i] * given[i];
    Step step{Numbers(K), d, Numbers(K), spec_.normalize ? 1 / std::sqrt(square) : 1, problem_.beta[pair(t)],
              0,          0, 0};
    for (int i = 0; i < K; ++i) {
      step.key[i] = round_(given[i] * step.rstd);
      out_.write_key[pair(t) * K + i] = d[i] * step.key[i];
      step.s += d[i] * step.key[i] * step.key[i];
      step.plain += step.key[i] * step.key[i];
    }
    step.norm = spec_.divide_by_key_norm ? step.plain + 1e-5 : 1;
    const double e = spec_.beta_aware ? step.beta * (1 - step.beta * step.s) : 1 - step.s;
    count(t, step);
    for (int i = 0; i < K; ++i) {
      const double r = retention(t, i);
      const double kept = spec_.anchored ? 1 + r * (d[i] - 1) : r * d[i];
      const double proposed = kept + spec_.eta * e * step.key[i] * step.key[i] / step.norm;
      step.within[i] = proposed >= lo && proposed <= hi ? 1 : 0;
      out_.clipped += 1 - step.within[i];
      d[i] = std::clamp(proposed, lo, hi);
    }
    steps_.push_back(std::move(step));
  }

  void count(int64_t t, const Step& step) {
    Numbers& terms = out_.statistics;
    const auto log_ratio = [](double strength) {
      return std::log(std::max((1 - strength) * (1 - strength), 1e-30));
    };
    terms[0] += 1;
    terms[1] += log_ratio(step.beta * step.s);
    terms[2] += log_ratio(step.beta * step.plain);
    terms[4] += step.beta;
    terms[5] = std::max(terms[5], step.beta * step.s);
    terms[6] += spec_.K;
    const double lo = static_cast<float>(spec_.box_min);
    const double hi = static_cast<float>(spec_.box_max);
    for (int i = 0; i < spec_.K; ++i) {
      terms[7] += step.d[i];
      terms[8] = std::min(terms[8], step.d[i]);
      terms[9] = std::max(terms[9], step.d[i]);
      terms[10] += step.d[i] == lo || step.d[i] == hi ? 1 : 0;
    }
    const int retentions = spec_.retention == Retention::kNone   ? 0
                           : spec_.retention == Retention::kHead ? 1
                                                                 : spec_.K;
    terms[11] += retentions;
    for (int i = 0; i < retentions; ++i) terms[12] += retention(t, i);
  }

  void reverse(int64_t t, const Step& step, Numbers& lambda) {
    const int K = spec_.K;
    double along = 0;  // B
    for (int i = 0; i < K; ++i) {
      lambda[i] *= step.within[i];
      along += lambda[i] * step.key[i] * step.key[i];
    }
    const double b = spec_.beta_aware ? step.beta : 1;
    const double a = 1 - b * step.s;
    const double rate = spec_.eta / step.norm;
    out_.d_beta[pair(t)] = spec_.beta_aware ? rate * (1 - 2 * step.beta * step.s) * along : 0;
    Numbers d_key(K);
    double d_key_along = 0;
    for (int i = 0; i < K; ++i) {
      const double d_x =
          rate * b *
          (a * lambda[i] - b * along * step.d[i] - (spec_.divide_by_key_norm ? a * along / step.norm : 0));
      d_key[i] = 2 * step.key[i] * (spec_.detach ? 0 : d_x) + step.d[i] * problem_.d_written[pair(t) * K + i];
      d_key_along += d_key[i] * step.key[i];
      const double through = lambda[i] * (spec_.anchored ? step.d[i] - 1 : step.d[i]);
      if (spec_.retention == Retention::kHead) out_.d_retention[pair(t)] += through;
      if (spec_.retention == Retention::kChannel) out_.d_retention[pair(t) * K + i] = through;
    }
    for (int i = 0; i < K; ++i) {
      out_.d_k[pair(t) * K + i] =
          spec_.normalize ? step.rstd * (d_key[i] - step.key[i] * d_key_along) : d_key[i];
      lambda[i] = retention(t, i) * lambda[i] - rate * b * b * along * step.key[i] * step.key[i] +
                  step.key[i] * problem_.d_written[pair(t) * K + i];
    }
  }

  const Problem& problem_;
  const Spec& spec_;
  const std::function<double(double)>& round_;
  int64_t first_, last_;
  int head_;
  size_t state_;
  Results& out_;
  std::vector<Step> steps_;
};

double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

Results recurrence(const Problem& problem, const std::function<double(double)>& round) {
  const Spec& spec = problem.spec;
  Results out;
  out.write_key.resize(problem.d_written.size());
  out.d_k.resize(problem.d_written.size());
  out.final_d.resize(problem.d_final.size());
  out.d_initial.resize(problem.d_final.size());
  out.d_beta.resize(problem.beta.size());
  out.d_retention.resize(problem.retention.size());
  out.statistics.resize(13);
  out.statistics[5] = -INFINITY;
  out.statistics[8] = INFINITY;
  out.statistics[9] = -INFINITY;
  for (int64_t s = 0; s < spec.sequences(); ++s)
    for (int head = 0; head < spec.HV; ++head) Chain(problem, round, s, head, out).run();
  out.clipped /= std::max<double>(1, static_cast<double>(problem.d_written.size()));
  return out;
}

TEST_CASE("the gradients of the scan's recurrence are the slopes of its outputs",
          "[precond_scan_recurrence]") {
  const auto exact = [](double x) { return x; };
  for (const Retention retention : {Retention::kNone, Retention::kHead, Retention::kChannel})
    for (const int flags : {0, 1, 2, 4, 8, 15}) {
      CAPTURE(static_cast<int>(retention), flags);
      const Problem problem = make_problem({.offsets = {0, 0, 9, 10},
                                            .K = 5,
                                            .H = 1,
                                            .HV = 2,
                                            .retention = retention,
                                            .bf16 = false,
                                            .beta_aware = (flags & 1) == 0,
                                            .divide_by_key_norm = (flags & 2) != 0,
                                            .anchored = (flags & 4) != 0,
                                            .normalize = (flags & 8) == 0,
                                            .box_min = 0.85,
                                            .box_max = 1.15});
      const Results at = recurrence(problem, exact);
      CHECK(at.clipped > 0.02);
      CHECK(at.clipped < 0.98);
      const auto loss = [&](const Problem& moved) {
        const Results out = recurrence(moved, exact);
        return dot(out.write_key, problem.d_written) + dot(out.final_d, problem.d_final);
      };
      // Of the key heads and of the shared first d: sums over what reads them.
      Numbers d_k(problem.k.size());
      Numbers d_initial(problem.initial.size());
      const size_t K = 5;
      for (size_t i = 0; i < at.d_k.size(); ++i) d_k[i / (2 * K) * K + i % K] += at.d_k[i];
      for (size_t i = 0; i < at.d_initial.size(); ++i) d_initial[i % d_initial.size()] += at.d_initial[i];
      std::mt19937 random(11);
      std::normal_distribution<double> normal;
      const auto check = [&](const std::string& name, Numbers Problem::*member, const Numbers& gradient) {
        CAPTURE(name);
        Numbers direction(gradient.size());
        for (double& x : direction) x = normal(random);
        const double step = 1e-7;
        Problem up = problem;
        Problem down = problem;
        for (size_t i = 0; i < direction.size(); ++i) {
          (up.*member)[i] += step * direction[i];
          (down.*member)[i] -= step * direction[i];
        }
        CHECK((loss(up) - loss(down)) / (2 * step) ==
              Approx(dot(gradient, direction)).epsilon(1e-5).margin(1e-6));
      };
      check("k", &Problem::k, d_k);
      check("beta", &Problem::beta, at.d_beta);
      check("retention", &Problem::retention, at.d_retention);
      check("initial", &Problem::initial, d_initial);
    }
}

}  // namespace osdn::kernels::precond_scan_kernels_test
