// The CUDA kernels of the preconditioner scan, run on the CPU (tests/emulation/cuda_on_cpu.h), against the
// token recurrence and its reverse in float64 (docs/ops/precond_scan.md eq. 1-12).
#include "kernels/precond_scan.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/residual_stats.h"
#include "tests/emulation/buffer.h"
#include "tests/emulation/launch_checked.h"
#include "tests/emulation/precond_scan_recurrence.h"
#include "tests/support/catch.h"

namespace osdn::kernels::precond_scan_kernels_test {

using emulation_test::Buffer;
using emulation_test::buffer_of;
using emulation_test::launch_checked;
using emulation_test::relative_error;
using emulation_test::SharedLimit;

constexpr double kHalf = 4e-3;    // of numbers that are rounded to bf16 at the end
constexpr double kSingle = 2e-5;  // of sums in fp32, and of d, whose sums in fixed point have 2^-21 as unit
// Of sums over a gradient in fixed point: 20 bits of a bound that a single token may be far below.
constexpr double kFixed = 4e-3;
constexpr double kAfterFixed = 2e-4;  // of what adds up many such tokens
constexpr int kPadding = 24;          // numbers between the rows of a fused projection
constexpr auto kTerms = static_cast<size_t>(kResidualTerms);

/// What the kernels read and write for a problem, keys and gradients as views of wider rows.
template <typename T>
class Run {
 public:
  explicit Run(const Problem& problem)
      : problem_(problem),
        spec_(problem.spec),
        block_(precond_scan_block(precond_scan_channels(spec_.K), spec_.bf16,
                                  spec_.retention == Retention::kChannel)),
        k_(strided(problem.k, spec_.H)),
        d_written_(strided(problem.d_written, spec_.HV)),
        beta_(plain(problem.beta)),
        retention_(plain(problem.retention)),
        initial_(plain(problem.initial)),
        d_final_(plain(problem.d_final)),
        offsets_(buffer_of(spec_.offsets)),
        order_(spec_.offsets.size() - 1),
        write_key_(problem.d_written.size()),
        tokens_(problem.beta.size()),
        block_d_(static_cast<size_t>(precond_scan_block_rows(spec_.tokens(), spec_.sequences(), block_) *
                                     spec_.HV * spec_.K)),
        final_d_(problem.d_final.size()),
        statistics_(static_cast<size_t>(spec_.sequences() * spec_.HV) * kTerms),
        merged_(kTerms),
        d_k_(problem.d_written.size()),
        d_beta_(problem.beta.size()),
        d_retention_(problem.retention.size()),
        d_initial_(problem.d_final.size()) {
    int64_t* const order = order_.host();
    std::iota(order, order + spec_.sequences(), 0);
    const std::vector<int64_t>& at = spec_.offsets;
    std::stable_sort(order, order + spec_.sequences(),
                     [&](int64_t a, int64_t b) { return at[a + 1] - at[a] > at[b + 1] - at[b]; });
  }

  PrecondScanInputs inputs() const {
    return {.offsets = offsets_.get(),
            .order = order_.get(),
            .num_tokens = spec_.tokens(),
            .num_sequences = spec_.sequences(),
            .num_key_heads = spec_.H,
            .num_value_heads = spec_.HV,
            .key_size = spec_.K,
            .bf16 = spec_.bf16,
            .k = rows(k_, spec_.H),
            .beta = beta_.get(),
            .retention = spec_.retention == Retention::kNone ? nullptr : retention_.get(),
            .step_size = static_cast<float>(spec_.eta),
            .box_min = static_cast<float>(spec_.box_min),
            .box_max = static_cast<float>(spec_.box_max),
            .beta_aware = spec_.beta_aware,
            .divide_by_key_norm = spec_.divide_by_key_norm,
            .channel_retention = spec_.retention == Retention::kChannel,
            .anchored = spec_.anchored,
            .normalize = spec_.normalize};
  }
  PrecondScanForwardArgs forward_args() const {
    return {.in = inputs(),
            .initial = initial_.get(),
            .shared_initial = true,
            .write_key = write_key_.get(),
            .tokens = tokens_.get(),
            .block_d = block_d_.get(),
            .final_d = final_d_.get(),
            .statistics = statistics_.get()};
  }
  PrecondScanBackwardArgs backward_args() const {
    return {.in = inputs(),
            .tokens = tokens_.get(),
            .block_d = block_d_.get(),
            .d_write_key = rows(d_written_, spec_.HV),
            .d_final = d_final_.get(),
            .detach = spec_.detach,
            .d_k = d_k_.get(),
            .d_beta = d_beta_.get(),
            .d_retention = spec_.retention == Retention::kNone ? nullptr : d_retention_.get(),
            .d_initial = d_initial_.get()};
  }

  Results forward() const {
    launch_checked(forward_args());
    launch_checked(ResidualMergeArgs{
        .parts = statistics_.get(), .num_parts = spec_.sequences() * spec_.HV, .terms = merged_.get()});
    return {.write_key = write_key_.numbers(),
            .final_d = final_d_.numbers(),
            .statistics = Numbers(merged_.host(), merged_.host() + kTerms)};
  }
  Results both_passes() const {
    Results out = forward();
    launch_checked(backward_args());
    for (const bool intact :
         {write_key_.guards_intact(), tokens_.guards_intact(), block_d_.guards_intact(),
          final_d_.guards_intact(), statistics_.guards_intact(), d_k_.guards_intact(),
          d_beta_.guards_intact(), d_retention_.guards_intact(), d_initial_.guards_intact()})
      CHECK(intact);
    out.d_k = d_k_.numbers();
    out.d_beta = d_beta_.numbers();
    out.d_retention = d_retention_.numbers();
    out.d_initial = d_initial_.numbers();
    return out;
  }

 private:
  Buffer<T> strided(const Numbers& numbers, int heads) const {
    const auto row = static_cast<size_t>(heads * spec_.K);
    Buffer<T> out(static_cast<size_t>(spec_.tokens()) * (row + kPadding));
    for (size_t i = 0; i < numbers.size(); ++i)
      out[i / row * (row + kPadding) + i % row] = static_cast<T>(static_cast<float>(numbers[i]));
    return out;
  }
  PrecondScanRows rows(const Buffer<T>& buffer, int heads) const {
    return {.data = buffer.get(), .token_stride = heads * spec_.K + kPadding, .head_stride = spec_.K};
  }
  static Buffer<float> plain(const Numbers& numbers) {
    Buffer<float> out(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) out[i] = static_cast<float>(numbers[i]);
    return out;
  }

  const Problem& problem_;
  const Spec& spec_;
  int block_;
  Buffer<T> k_, d_written_;
  Buffer<float> beta_, retention_, initial_, d_final_;
  Buffer<int64_t> offsets_, order_;
  Buffer<T> write_key_;
  Buffer<PrecondScanToken> tokens_;
  Buffer<float> block_d_, final_d_;
  Buffer<double> statistics_, merged_;
  Buffer<T> d_k_;
  Buffer<float> d_beta_, d_retention_, d_initial_;
};

Results on_kernels(const Problem& problem) {
  return problem.spec.bf16 ? Run<__nv_bfloat16>(problem).both_passes() : Run<float>(problem).both_passes();
}

Results expected_of(const Problem& problem) {
  return recurrence(problem, [&](double x) { return round_to_key(x, problem.spec.bf16); });
}

void check_statistics(const Results& found, const Results& expected) {
  constexpr size_t kAtBox = 10;
  for (size_t term = 0; term < kTerms; ++term) {
    CAPTURE(term);
    // A rounding decides whether a channel is at the box: single ones may differ.
    const double margin = term == kAtBox ? 1 + 0.01 * expected.statistics[6] : 1e-6;
    if (found.statistics[term] != expected.statistics[term])
      CHECK(found.statistics[term] == Approx(expected.statistics[term]).epsilon(1e-4).margin(margin));
  }
}

void check_gradients(const Spec& spec, const Results& found, const Results& expected) {
  CHECK(relative_error(found.d_k, expected.d_k) <= (spec.bf16 ? kHalf : kSingle));
  if (spec.detach) return;
  const bool fixed = spec.bf16 && spec.normalize;
  CHECK(relative_error(found.d_beta, expected.d_beta) <= (fixed ? kFixed : kSingle));
  if (spec.retention != Retention::kNone)
    CHECK(relative_error(found.d_retention, expected.d_retention) <= (fixed ? kAfterFixed : kSingle));
  CHECK(relative_error(found.d_initial, expected.d_initial) <= (fixed ? kAfterFixed : kSingle));
}

/// The kernels' results against the recurrence; the recurrence's.
Results check(const Spec& spec) {
  const Problem problem = make_problem(spec);
  const Results found = on_kernels(problem);
  const Results expected = expected_of(problem);
  CHECK(relative_error(found.write_key, expected.write_key) <= (spec.bf16 ? kHalf : kSingle));
  CHECK(relative_error(found.final_d, expected.final_d) <= kSingle);
  check_statistics(found, expected);
  check_gradients(spec, found, expected);
  return expected;
}

TEST_CASE("the scan kernels equal the recurrence at every length", "[precond_scan_kernels]") {
  for (const int64_t length : {1, 15, 16, 17, 63, 64, 65, 200}) {
    CAPTURE(length);
    check({.offsets = {0, length}, .retention = Retention::kHead});
  }
}

TEST_CASE("the scan kernels equal the recurrence with every key size, type and retention",
          "[precond_scan_kernels]") {
  for (const int K : {16, 48, 64, 128, 160, 256})
    for (const bool bf16 : {true, false})
      for (const Retention retention : {Retention::kNone, Retention::kHead, Retention::kChannel}) {
        CAPTURE(K, bf16, static_cast<int>(retention));
        check({.offsets = {0, 3, 21, 21, 22}, .K = K, .HV = 2, .retention = retention, .bf16 = bf16});
      }
}

TEST_CASE("the scan kernels equal the recurrence where the clip is active always, sometimes and never",
          "[precond_scan_kernels]") {
  struct Box {
    double lo, hi, eta, least, most;
  };
  // With a retention, so that it is not rounding that decides which side of the box a channel is on.
  for (const Box& box :
       {Box{1.5, 1.5, 1, 0.97, 1}, Box{0.9, 1.1, 2, 0.05, 0.97}, Box{2.0 / 3, 1.5, 1, 0.01, 0.97},
        Box{-1, 0.5, 2, 0.01, 0.97}, Box{-1e9, 1e9, 0.5, 0, 0}})
    for (const bool beta_aware : {true, false})
      for (const bool correlated : {false, true}) {
        CAPTURE(box.lo, box.hi, box.eta, beta_aware, correlated);
        const Results expected = check({.offsets = {0, 70},
                                        .K = 64,
                                        .retention = Retention::kHead,
                                        .beta_aware = beta_aware,
                                        .box_min = box.lo,
                                        .box_max = box.hi,
                                        .eta = box.eta,
                                        .correlated = correlated});
        CHECK(expected.clipped >= box.least);
        CHECK(expected.clipped <= box.most);
      }
}

TEST_CASE("the scan kernels equal the recurrence with every option", "[precond_scan_kernels]") {
  for (const bool bf16 : {true, false}) {
    CAPTURE(bf16);
    const Spec plain{
        .offsets = {0, 30}, .K = 64, .H = 2, .HV = 4, .retention = Retention::kHead, .bf16 = bf16};
    const auto with = [&](auto change) {
      Spec spec = plain;
      change(spec);
      check(spec);
    };
    with([](Spec& spec) { spec.divide_by_key_norm = true; });
    with([](Spec& spec) { spec.beta_aware = false, spec.divide_by_key_norm = true; });
    with([](Spec& spec) { spec.anchored = true; });
    with([](Spec& spec) { spec.anchored = true, spec.retention = Retention::kChannel; });
    with([](Spec& spec) { spec.normalize = false; });
    with([](Spec& spec) { spec.detach = true; });
    with([](Spec& spec) { spec.box_min = 0, spec.box_max = 1e9; });  // sums in fp32
  }
}

TEST_CASE("the reverse scan's kernel adds the gradient of the key handed on for reading, once a key head",
          "[precond_scan_kernels]") {
  for (const int K : {16, 64, 256})
    for (const bool detach : {false, true}) {
      CAPTURE(K, detach);
      const Problem problem =
          make_problem({.offsets = {0, 1, 1, 20}, .K = K, .H = 2, .HV = 4, .detach = detach});
      const Run<__nv_bfloat16> run(problem);
      const Results without = run.both_passes();
      PrecondScanBackwardArgs args = run.backward_args();
      args.d_read_key = args.in.k;  // any rows do
      const Buffer<__nv_bfloat16> d_k(problem.d_written.size());
      args.d_k = d_k.get();
      launch_checked(args);
      Numbers expected = without.d_k;
      const auto row = static_cast<size_t>(K);
      for (size_t i = 0; i < problem.k.size(); ++i)  // [N, H, K] to the first value head of [N, HV, K]
        expected[i / row * 2 * row + i % row] += problem.k[i];
      CHECK(relative_error(d_k.numbers(), expected) <= kHalf);
    }
}

TEST_CASE("gradients of every size pass the reverse scan's kernel alike", "[precond_scan_kernels]") {
  for (const double upstream : {1e-20, 1e-18, 1e12}) {
    CAPTURE(upstream);
    check({.offsets = {0, 33}, .K = 64, .retention = Retention::kHead, .upstream = upstream});
  }
}

TEST_CASE("in a pack every document has the bits of its own run of the scan kernels",
          "[precond_scan_kernels]") {
  const Spec spec{.offsets = {0, 0, 5, 5, 41, 42, 43, 43}, .K = 64, .HV = 2, .retention = Retention::kHead};
  const Problem pack = make_problem(spec);
  const Results together = on_kernels(pack);
  const auto same = [](const Numbers& all, size_t begin, const Numbers& part) {
    return std::memcmp(all.data() + begin, part.data(), part.size() * sizeof(double)) == 0;
  };
  const auto part_of = [](const Numbers& all, int64_t begin, int64_t end) {
    return Numbers(all.begin() + begin, all.begin() + end);
  };
  const int64_t HV = spec.HV;
  const int64_t row = HV * spec.K;
  for (int64_t s = 0; s < spec.sequences(); ++s) {
    const int64_t first = spec.offsets[s];
    const int64_t last = spec.offsets[s + 1];
    CAPTURE(s, first, last);
    Problem alone = pack;
    alone.spec.offsets = {0, last - first};
    alone.k = part_of(pack.k, first * spec.K, last * spec.K);
    alone.beta = part_of(pack.beta, first * HV, last * HV);
    alone.retention = part_of(pack.retention, first * HV, last * HV);
    alone.d_written = part_of(pack.d_written, first * row, last * row);
    alone.d_final = part_of(pack.d_final, s * row, (s + 1) * row);
    const Results own = on_kernels(alone);
    CHECK(same(together.write_key, static_cast<size_t>(first * row), own.write_key));
    CHECK(same(together.final_d, static_cast<size_t>(s * row), own.final_d));
    CHECK(same(together.d_k, static_cast<size_t>(first * row), own.d_k));
    CHECK(same(together.d_beta, static_cast<size_t>(first * HV), own.d_beta));
    CHECK(same(together.d_retention, static_cast<size_t>(first * HV), own.d_retention));
    CHECK(same(together.d_initial, static_cast<size_t>(s * row), own.d_initial));
    if (first < last) continue;
    CHECK(own.final_d == pack.initial);
    CHECK(own.d_initial == alone.d_final);
  }
}

TEST_CASE("the scan kernels equal the recurrence where there are more chains than multiprocessors",
          "[precond_scan_kernels]") {
  Spec spec{.K = 16, .HV = 2, .retention = Retention::kHead};
  spec.offsets = {0};
  for (int64_t s = 0; s < 70; ++s) spec.offsets.push_back(spec.offsets.back() + s * 7 % 4);
  spec.offsets.push_back(spec.offsets.back() + 90);
  check(spec);
}

TEST_CASE("residual statistics have the same bits however many empty documents follow",
          "[precond_scan_kernels]") {
  const Spec spec{.offsets = {0, 3, 303}, .K = 64, .HV = 2, .retention = Retention::kHead};
  Problem problem = make_problem(spec);
  const Numbers few = on_kernels(problem).statistics;
  for (int i = 0; i < 70; ++i) {  // more chains than multiprocessors
    problem.spec.offsets.push_back(303);
    problem.d_final.insert(problem.d_final.end(), static_cast<size_t>(spec.HV * spec.K), 0.0);
  }
  CHECK(on_kernels(problem).statistics == few);
}

TEST_CASE("the scan kernels give the same bits on a device with less shared memory",
          "[precond_scan_kernels][emulated_device]") {
  const auto bits = [](const Results& of) {
    Numbers all;
    for (const Numbers* part :
         {&of.write_key, &of.final_d, &of.d_k, &of.d_beta, &of.d_retention, &of.d_initial})
      all.insert(all.end(), part->begin(), part->end());
    return all;
  };
  for (const bool bf16 : {true, false}) {  // 3 workers and 4
    const Problem problem =
        make_problem({.offsets = {0, 1, 67}, .K = 256, .retention = Retention::kChannel, .bf16 = bf16});
    const Numbers here = bits(on_kernels(problem));
    const SharedLimit limit(99 * 1024);
    const Numbers there = bits(on_kernels(problem));
    CHECK(std::memcmp(here.data(), there.data(), here.size() * sizeof(double)) == 0);
  }
}

TEST_CASE("what the scan kernels keep and count changes none of the rest", "[precond_scan_kernels]") {
  const Problem problem = make_problem({.offsets = {0, 21}, .K = 64});
  const Run<__nv_bfloat16> run(problem);
  const Results with = run.both_passes();
  const Run<__nv_bfloat16> bare(problem);
  PrecondScanForwardArgs args = bare.forward_args();
  args.tokens = nullptr;
  args.block_d = nullptr;
  args.statistics = nullptr;
  const Buffer<__nv_bfloat16> write_key(problem.d_written.size());
  const Buffer<float> final_d(problem.d_final.size());
  args.write_key = write_key.get();
  args.final_d = final_d.get();
  launch_checked(args);
  CHECK(write_key.numbers() == with.write_key);
  CHECK(final_d.numbers() == with.final_d);

  Problem silent = problem;  // absent gradients are zeros
  for (Numbers* x : {&silent.d_written, &silent.d_final}) x->assign(x->size(), 0.0);
  const Results zeros = on_kernels(silent);
  PrecondScanBackwardArgs absent = run.backward_args();
  absent.d_write_key = {};
  absent.d_final = nullptr;
  const Buffer<__nv_bfloat16> d_k(problem.d_written.size());
  absent.d_k = d_k.get();
  launch_checked(absent);
  CHECK(d_k.numbers() == zeros.d_k);
}

TEST_CASE("residual statistics of a long sequence are summed whole",
          "[precond_scan_kernels][emulated_device]") {
  // More blocks a worker than it sums in fp32: with three workers, as many as this memory has slots for,
  // those are 1,536 tokens.
  const Problem problem = make_problem({.offsets = {0, 1600}, .K = 16});
  const Run<__nv_bfloat16> run(problem);
  const SharedLimit limit(6000);
  check_statistics(run.forward(), expected_of(problem));
}

TEST_CASE("residual statistics of writes with d = 1 and the merge of parts on the kernels",
          "[precond_scan_kernels]") {
  for (const bool bf16 : {true, false})
    for (const int K : {16, 64, 128, 256}) {
      CAPTURE(bf16, K);
      const Problem problem = make_problem({.offsets = {0, 150}, .K = K, .H = 2, .HV = 4, .bf16 = bf16});
      Problem ones = problem;  // d stays 1 with steps of 0
      ones.initial.assign(ones.initial.size(), 1.0);
      ones.spec.eta = 0;
      const Results expected = expected_of(ones);
      const auto parts_of = [&](auto zero) {
        using T = decltype(zero);
        const Run<T> run(problem);
        const PrecondScanInputs in = run.inputs();
        Buffer<double> parts(static_cast<size_t>(plain_residual_parts(in.num_tokens)) * kTerms);
        launch_checked(PlainResidualArgs{.k = in.k.data,
                                         .token_stride = in.k.token_stride,
                                         .head_stride = in.k.head_stride,
                                         .beta = in.beta,
                                         .num_tokens = in.num_tokens,
                                         .num_key_heads = in.num_key_heads,
                                         .num_value_heads = in.num_value_heads,
                                         .key_size = in.key_size,
                                         .bf16 = bf16,
                                         .parts = parts.get()});
        return parts;
      };
      const Buffer<double> parts = bf16 ? parts_of(__nv_bfloat16{}) : parts_of(0.0f);
      const Buffer<double> terms(kTerms);
      launch_checked(ResidualMergeArgs{.parts = parts.get(),
                                       .num_parts = static_cast<int64_t>(parts.size() / kTerms),
                                       .terms = terms.get()});
      for (const size_t term : {0, 1, 2, 3, 4, 5})
        CHECK(terms[term] == Approx(expected.statistics[term]).epsilon(1e-4).margin(1e-6));
      CHECK(terms[6] == 0);  // no d that could be summed
      CHECK(terms[11] == 0);
    }
  const Buffer<double> none(kTerms);
  launch_checked(ResidualMergeArgs{.parts = nullptr, .num_parts = 0, .terms = none.get()});
  CHECK(none[0] == 0);
  CHECK(none[5] == -INFINITY);
  CHECK(none[8] == INFINITY);
}

TEST_CASE("the gradient of the first d is the sum over sequences, 0 where it lies outside the box",
          "[precond_scan_kernels]") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const int64_t sequences : {0, 1, 7, 8, 9, 300})
    for (const int64_t channels : {1, 32, 33, 130})
      for (const bool clamp : {true, false}) {
        CAPTURE(sequences, channels, clamp);
        const Buffer<float> gradients(static_cast<size_t>(sequences * channels));
        const Buffer<float> initial(static_cast<size_t>(channels));
        const Buffer<float> sum(static_cast<size_t>(channels));
        for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = normal(random);
        for (size_t i = 0; i < initial.size(); ++i) initial[i] = 1 + normal(random);
        initial[0] = 1.5f;  // on the bound: inside
        launch_checked(PrecondScanInitialArgs{.d_initial = gradients.get(),
                                              .initial = initial.get(),
                                              .sum = sum.get(),
                                              .num_sequences = sequences,
                                              .num_channels = channels,
                                              .clamp = clamp,
                                              .box_min = 0.5f,
                                              .box_max = 1.5f});
        Numbers expected(sum.size());
        for (size_t i = 0; i < gradients.size(); ++i) expected[i % sum.size()] += gradients[i];
        for (size_t i = 0; i < sum.size(); ++i)
          if (clamp && (initial[i] < 0.5f || initial[i] > 1.5f)) expected[i] = 0;
        CHECK(relative_error(sum.numbers(), expected) <= 1e-6);
        CHECK(sum.guards_intact());
      }
}

}  // namespace osdn::kernels::precond_scan_kernels_test
