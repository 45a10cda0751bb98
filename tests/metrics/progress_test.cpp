#include "metrics/progress.h"

#include <limits>

#include "metrics/throughput.h"
#include "tests/support/catch.h"

namespace osdn::metrics::test {

namespace progress_test_detail {

RateMeter::TimePoint at_second(double seconds) {
  return RateMeter::TimePoint{} +
         std::chrono::duration_cast<RateMeter::TimePoint::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace progress_test_detail

TEST_CASE("the rate forgets what is older than a minute", "[progress]") {
  RateMeter rate;
  CHECK(rate.per_second() == 0);
  CHECK(rate.seconds_left(10) < 0);
  rate.add(progress_test_detail::at_second(0), 100);
  CHECK(rate.per_second() == 0);
  rate.add(progress_test_detail::at_second(100), 101);  // a slow first step
  CHECK(rate.per_second() == Approx(0.01));
  for (int i = 1; i <= 120; ++i) rate.add(progress_test_detail::at_second(100 + i), 101 + 2 * i);
  CHECK(rate.per_second() == Approx(2.0));
  CHECK(rate.seconds_left(341 + 50) == Approx(25.0));
  CHECK(rate.seconds_left(300) == 0);
}

TEST_CASE("units slower than the window still have a rate", "[progress]") {
  RateMeter rate;
  for (int i = 0; i < 5; ++i) rate.add(progress_test_detail::at_second(200.0 * i), i);
  CHECK(rate.per_second() == Approx(0.005));
}

TEST_CASE("progress shows count, share, rate and time left", "[progress]") {
  RateMeter rate;
  rate.add(progress_test_detail::at_second(0), 0);
  rate.add(progress_test_detail::at_second(4), 10);
  CHECK(progress_line("run", 10, 40, rate, "loss 3.4") ==
        "run: 10 of 40 (25.0 %), 2.50/s, 12 s left, loss 3.4");
  CHECK(progress_line("run", 40, 40, rate, "") == "run: 40 of 40 (100.0 %), 2.50/s");
  CHECK(progress_line("run", 0, 0, RateMeter(), "") == "run: 0 of 0 (100.0 %)");
  const std::string bar = progress_bar("run", 10, 40, rate, "loss 3.4", 200);
  CHECK(bar == "run [#####               ] 10/40  2.50/s  12 s left  loss 3.4");
  RateMeter slow;
  slow.add(progress_test_detail::at_second(0), 0);
  slow.add(progress_test_detail::at_second(4), 1);
  CHECK(progress_line("run", 1, 2, slow, "") == "run: 1 of 2 (50.0 %), 4.00 s each, 4 s left");
}

TEST_CASE("a narrow terminal loses the bar before the numbers, and the last fields as a whole",
          "[progress]") {
  RateMeter rate;
  rate.add(progress_test_detail::at_second(0), 0);
  rate.add(progress_test_detail::at_second(4), 10);
  const std::string text = "loss 3.4  q_geo 0.30  12,345 tokens/s";
  const auto bar = [&](size_t width) { return progress_bar("run", 10, 40, rate, text, width); };
  const std::string fields = " 10/40  2.50/s  12 s left  " + text;
  const size_t bare = ("run" + fields).size();
  CHECK(bar(bare + 23) == "run [#####               ]" + fields);
  CHECK(bar(bare + 13) == "run [##        ]" + fields);
  CHECK(bar(bare + 8) == "run [#    ]" + fields);
  CHECK(bar(bare + 7) == "run" + fields);
  CHECK(bar(bare) == "run" + fields);
  CHECK(bar(bare - 1) == "run 10/40  2.50/s  12 s left  loss 3.4  q_geo 0.30");
  CHECK(bar(40) == "run 10/40  2.50/s  12 s left  loss 3.4");
  CHECK(bar(8) == "run 10/4");
  for (size_t width = 0; width < 100; ++width) CHECK(bar(width).size() <= width);
  // A terminal of the usual width keeps a bar, and loses the last field instead.
  const std::string long_text = text + "  grad 0.84  lr 1.0e-3";
  CHECK(progress_bar("run", 10, 40, rate, long_text, 79) == "run [#    ]" + fields);
}

TEST_CASE("durations read naturally at every size", "[progress]") {
  CHECK(format_duration(-3) == "0 s");
  CHECK(format_duration(12.4) == "12 s");
  CHECK(format_duration(59.6) == "1 min 00 s");
  CHECK(format_duration(200) == "3 min 20 s");
  CHECK(format_duration(3720) == "1 h 02 min");
  CHECK(format_duration(90000) == "1 d 01 h");
}

TEST_CASE("utilisation divides by the nominal peak", "[progress]") {
  // DeltaNet 340M: 2.1534e9 FLOPs a token; at 226,000 tokens/s on one GPU.
  CHECK(model_flops_utilization(2153373696.0, 226000) == Approx(2153373696.0 * 226000 / 989e12));
  CHECK(model_flops_utilization(989e12, 1) == 1.0);
}

TEST_CASE("the summary of a step leaves out what the record lacks", "[progress]") {
  StepRecord record;
  record.loss = 3.4123;
  record.grad_norm = 0.844;
  record.learning_rate = 1e-3;
  CHECK(summary(record) == "loss 3.412  grad 0.84  lr 1.0e-3");
  record.tokens_per_second = 12345.4;
  record.residual = ResidualFields{};
  record.residual->q_geo = 0.3012;
  CHECK(summary(record) == "loss 3.412  q_geo 0.301  12,345 tokens/s  grad 0.84  lr 1.0e-3");
  record.residual.reset();
  record.loss = std::numeric_limits<double>::quiet_NaN();
  record.skipped = true;
  record.tokens_per_second = 1234567;
  record.validation = Validation{2.5, 12.2, 1.1};
  CHECK(summary(record) ==
        "loss not finite  step skipped  validation 2.500  1,234,567 tokens/s  grad 0.84  lr 1.0e-3");
}

}  // namespace osdn::metrics::test
