// The parts that Telemetry counts with: labels, windows, buckets, heads.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "service/telemetry/attention_window.h"
#include "service/telemetry/head_totals.h"
#include "service/telemetry/histogram.h"
#include "service/telemetry/label_names.h"
#include "service/telemetry/latency_window.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr Clock::time_point kNow{std::chrono::hours(1)};

TEST(LabelNames, AsManyAsMayHaveLabelsOfTheirOwnAndTheRestIsOther) {
  LabelNames names({}, 3);
  EXPECT_EQ(names.Find("a"), "other");
  EXPECT_EQ(names.Use("a", kNow), "a");
  EXPECT_EQ(names.Use("b", kNow), "b");
  EXPECT_EQ(names.Use("", kNow), "none");
  EXPECT_EQ(names.Use("c", kNow), "c");
  EXPECT_EQ(names.Use("d", kNow), "other");
  EXPECT_TRUE(names.Lacks("d", kNow + seconds(1)));
  EXPECT_FALSE(names.Lacks("a", kNow + seconds(1)));
  EXPECT_FALSE(names.Lacks("d", kNow)) << "all are in use";
  EXPECT_EQ(names.Use("a", kNow), "a");
  EXPECT_EQ(names.Find("b"), "b");
}

TEST(LabelNames, TheNameThatWasUsedLeastRecentlyGivesItsLabel) {
  LabelNames names({}, 2);
  const Label a = names.Use("a", kNow);
  names.Use("b", kNow + seconds(1));
  names.Use("a", kNow + seconds(2));
  EXPECT_FALSE(names.DropIdle(kNow + seconds(1))) << "both were used since";
  EXPECT_EQ(names.DropIdle(kNow + seconds(2)).value(), "b");
  EXPECT_EQ(names.Find("b"), "other");
  EXPECT_EQ(names.Use("c", kNow + seconds(3)), "c");
  EXPECT_EQ(names.DropIdle(kNow + seconds(9)).value(), "a");
  EXPECT_EQ(a.text(), "a") << "a label outlives its name";
}

TEST(LabelNames, AUseInThePastIsNone) {
  LabelNames names({}, 2);
  names.Use("a", kNow);
  names.Use("known", Clock::time_point{});  // but not in use
  names.Use("a", Clock::time_point{});
  EXPECT_EQ(names.DropIdle(kNow).value(), "known");
  EXPECT_FALSE(names.DropIdle(kNow));
}

TEST(LabelNames, WhereNamesAreListedNoOtherGetsALabel) {
  LabelNames names({"legal", "code"}, 64);
  EXPECT_EQ(names.Use("legal", kNow), "legal");
  EXPECT_EQ(names.Use("chat", kNow), "other");
  EXPECT_FALSE(names.Lacks("chat", kNow));
  EXPECT_EQ(names.Find("code"), "code");
  EXPECT_FALSE(names.DropIdle(kNow + seconds(1))) << "listed names keep theirs";
}

TEST(LabelNames, NobodyIsCalledLikeTheLabelsOfNoNameAndOfTheRest) {
  LabelNames names({}, 64);
  EXPECT_EQ(names.Use("none", kNow), Label::Other());
  EXPECT_EQ(names.Use("other", kNow), Label::Other());
  LabelNames listed({"none", "legal"}, 64);
  EXPECT_EQ(listed.Use("none", kNow), Label::Other());
  EXPECT_EQ(listed.Use("legal", kNow), "legal");
}

TEST(LabelNames, TenThousandNamesTakeNoMoreThanTheirRoom) {
  LabelNames names({}, 64);
  std::set<Label> labels;
  for (int i = 0; i < 10'000; ++i) labels.insert(names.Use("name-" + std::to_string(i), kNow));
  EXPECT_EQ(labels.size(), 65u);
  EXPECT_TRUE(labels.contains(Label::Other()));
}

TEST(LabelNames, WithoutRoomAllAreOther) {
  LabelNames names({}, 0);
  EXPECT_EQ(names.Use("a", kNow), "other");
  EXPECT_FALSE(names.Lacks("a", kNow));
}

TEST(AttentionWindow, RowsAreForgottenAfterTenMinutes) {
  AttentionWindow window;
  const RecentSums row{{.decode_rows = 1, .head_density_sum = 0.25, .union_density_sum = 0.5}, 7};
  window.Add(row, /*like_measured=*/true, kNow);
  window.Add(row, /*like_measured=*/false, kNow + seconds(30));
  EXPECT_EQ(window.Sum(kNow + seconds(599)).all.decode_rows, 2);
  EXPECT_EQ(window.Sum(kNow + seconds(599)).all.context, 14);
  EXPECT_EQ(window.Sum(kNow + seconds(599)).like_measured.decode_rows, 1);
  EXPECT_EQ(window.Sum(kNow + seconds(600)).all.decode_rows, 1);
  EXPECT_EQ(window.Sum(kNow + seconds(600)).like_measured.decode_rows, 0);
  EXPECT_EQ(window.Sum(kNow + seconds(630)).all.decode_rows, 0);
  window.Add(row, /*like_measured=*/true, kNow + seconds(600));  // in the place of the first
  EXPECT_EQ(window.Sum(kNow + seconds(600)).all.decode_rows, 2);
  EXPECT_DOUBLE_EQ(window.Sum(kNow + seconds(600)).all.head_density_sum, 0.5);
  EXPECT_DOUBLE_EQ(window.Sum(kNow + seconds(600)).all.union_density_sum, 1.0);
}

TEST(AttentionWindow, OneAddedToAnotherHoldsWhatIsRecentOfBoth) {
  AttentionWindow old, recent, both;
  const RecentSums row{{.decode_rows = 1, .head_density_sum = 0.5, .union_density_sum = 1.0}, 3};
  old.Add(row, /*like_measured=*/false, kNow);
  old.Add(row, /*like_measured=*/false, kNow + seconds(45));
  recent.Add(row, /*like_measured=*/true, kNow + seconds(45));
  recent.Add(row, /*like_measured=*/true, kNow + seconds(600));
  both.Add(old);
  both.Add(recent);
  EXPECT_EQ(both.Sum(kNow + seconds(600)).all.decode_rows, 3);
  EXPECT_EQ(both.Sum(kNow + seconds(600)).like_measured.decode_rows, 2);
  recent.Add(old);
  EXPECT_EQ(recent.Sum(kNow + seconds(600)).all.decode_rows, 3);
}

TEST(Histogram, AValueOnABoundIsInTheBucketBelowIt) {
  Histogram histogram(InterTokenBuckets());
  histogram.Observe(0.001);
  histogram.Observe(0.0010001);
  histogram.Observe(11.0);
  EXPECT_EQ(histogram.InBucket(0), 1);
  EXPECT_EQ(histogram.InBucket(1), 1);
  EXPECT_EQ(histogram.InBucket(InterTokenBuckets().upper.size()), 1);
  EXPECT_EQ(histogram.count(), 3);
  EXPECT_DOUBLE_EQ(histogram.sum(), 11.0020001);
}

TEST(Histogram, OneAddedToAnotherHoldsBoth) {
  Histogram histogram(RatioBuckets());
  Histogram other(RatioBuckets());
  histogram.Observe(0.015);
  other.Observe(0.015);
  other.Observe(2.0);
  histogram.Add(other);
  EXPECT_EQ(histogram.InBucket(1), 2);
  EXPECT_EQ(histogram.InBucket(RatioBuckets().upper.size()), 1);
  EXPECT_EQ(histogram.count(), 3);
  EXPECT_DOUBLE_EQ(histogram.sum(), 2.03);
}

TEST(Histogram, BoundsAscendAndFit) {
  for (const Buckets* buckets :
       {&FirstTokenBuckets(), &InterTokenBuckets(), &RequestBuckets(), &StepBuckets(),
        &CalibrationBuckets(), &RatioBuckets(), &TokenBuckets(), &BatchBuckets()}) {
    EXPECT_TRUE(std::is_sorted(buckets->upper.begin(), buckets->upper.end()));
    EXPECT_LT(buckets->upper.size(), Buckets::kMost);
  }
}

TEST(LatencyWindow, QuantilesAreOffByAtMostHalfABin) {
  LatencyWindow window(seconds(5), 12);
  const Clock::time_point now{seconds(1000)};
  std::mt19937_64 random(7);
  std::vector<int64_t> values;
  for (int i = 0; i < 20'000; ++i) {
    // From microseconds to minutes, evenly over the orders of magnitude.
    const double exponent = 3.0 + 8.0 * static_cast<double>(random() % 10'000) / 10'000.0;
    values.push_back(static_cast<int64_t>(std::pow(10.0, exponent)));
    window.Observe(nanoseconds(values.back()), now);
  }
  std::sort(values.begin(), values.end());
  const LatencyQuantiles got = window.Quantiles(now);
  const auto expect_near = [&](nanoseconds quantile, int percent) {
    const auto want = static_cast<double>(values[values.size() * percent / 100 - 1]);
    EXPECT_NEAR(static_cast<double>(quantile.count()), want, want * 0.016) << percent;
  };
  EXPECT_EQ(got.count, 20'000);
  expect_near(got.p50, 50);
  expect_near(got.p95, 95);
  expect_near(got.p99, 99);
}

TEST(LatencyWindow, ExtremesAreKeptWithinItsRange) {
  LatencyWindow window(seconds(5), 12);
  const Clock::time_point now{seconds(1000)};
  window.Observe(nanoseconds(-5), now);
  EXPECT_EQ(window.Quantiles(now).p50.count(), 0);
  LatencyWindow longest(seconds(5), 12);
  longest.Observe(std::chrono::hours(24 * 365), now);
  EXPECT_GT(longest.Quantiles(now).p50, seconds(3600));
}

TEST(LatencyWindow, ForgetsWhatIsOlderThanItself) {
  LatencyWindow window(seconds(5), 12);
  const Clock::time_point begin{seconds(1000)};
  window.Observe(milliseconds(900), begin);
  window.Observe(milliseconds(1), begin + seconds(30));
  EXPECT_EQ(window.Quantiles(begin + seconds(59)).count, 2);
  EXPECT_EQ(window.Quantiles(begin + seconds(60)).count, 1);
  EXPECT_LT(window.Quantiles(begin + seconds(60)).p99, milliseconds(2));
  EXPECT_EQ(window.Quantiles(begin + seconds(1000)).count, 0);
  EXPECT_EQ(window.Quantiles(begin + seconds(1000)).p99.count(), 0);
  // The slot's next turn starts at nothing.
  window.Observe(milliseconds(5), begin + seconds(600));
  EXPECT_EQ(window.Quantiles(begin + seconds(600)).count, 1);
}

TEST(RateWindow, IsOverTheLastMinuteOrSinceTheStart) {
  RateWindow rate;
  const Clock::time_point started{seconds(5000)};
  EXPECT_EQ(rate.PerSecond(started, started), 0.0);
  for (int i = 0; i < 10; ++i) rate.Add(5, started + seconds(i));
  EXPECT_DOUBLE_EQ(rate.PerSecond(started, started + seconds(10)), 5.0);
  EXPECT_DOUBLE_EQ(rate.PerSecond(started, started + seconds(300)), 0.0);
  for (int i = 0; i < 120; ++i) rate.Add(7, started + seconds(400 + i));
  EXPECT_NEAR(rate.PerSecond(started, started + seconds(520) - milliseconds(1)), 7.0, 0.01);
}

TEST(HeadTotals, AddUpAsPlainLoopsDo) {
  const HeadShape shape{.num_layers = 3, .num_query_heads = 7, .num_kv_heads = 2};
  constexpr int kRows = 50;
  std::mt19937 random(3);
  std::vector<int32_t> attended(3 * kRows * 7);
  std::vector<int32_t> read(3 * kRows * 2);
  for (int32_t& count : attended) count = static_cast<int32_t>(random() % 100'000);
  for (int32_t& count : read) count = static_cast<int32_t>(random() % 100'000);
  std::vector<DecodeRowReport> reports;
  for (int row = 0; row < kRows; ++row) reports.push_back({.row = row, .kv_len = 100'000 + row});
  StepReport step;
  step.num_rows = kRows;
  step.tokens_attended = attended.data();
  step.tokens_read = read.data();

  // Some rows do not count, the others belong to one of two.
  HeadTotals totals[2] = {HeadTotals(shape), HeadTotals(shape)};
  std::vector<HeadTotals::Row> rows;
  for (int row = 0; row < kRows; row += 1 + row % 2) {
    rows.push_back({.report = &reports[row], .totals = &totals[row % 3 == 0]});
  }
  HeadTotals::Add(step, rows);

  std::vector<LayerTotals> want[2];
  for (auto& layers : want) {
    layers.assign(3, {std::vector<int64_t>(7), std::vector<int64_t>(2), 0});
  }
  for (const HeadTotals::Row& row : rows) {
    auto& layers = want[row.totals - totals];
    for (int layer = 0; layer < 3; ++layer) {
      for (int head = 0; head < 7; ++head) {
        layers[layer].keys_attended[head] += attended[(layer * kRows + row.report->row) * 7 + head];
      }
      for (int head = 0; head < 2; ++head) {
        layers[layer].keys_read[head] += read[(layer * kRows + row.report->row) * 2 + head];
      }
      layers[layer].keys_eligible += row.report->kv_len;
    }
  }
  std::vector<LayerTotals> both;
  for (int i = 0; i < 2; ++i) {
    std::vector<LayerTotals> got;
    totals[i].AddTo(got);
    totals[i].AddTo(both);
    ASSERT_EQ(got.size(), 3u);
    for (int layer = 0; layer < 3; ++layer) {
      EXPECT_EQ(got[layer].keys_attended, want[i][layer].keys_attended);
      EXPECT_EQ(got[layer].keys_read, want[i][layer].keys_read);
      EXPECT_EQ(got[layer].keys_eligible, want[i][layer].keys_eligible);
    }
  }
  EXPECT_EQ(both[1].keys_attended[6], want[0][1].keys_attended[6] + want[1][1].keys_attended[6]);
}

TEST(HeadTotals, SumsMayPassThirtyTwoBits) {
  const HeadShape shape{.num_layers = 1, .num_query_heads = 1, .num_kv_heads = 1};
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const std::vector<int32_t> counts(5, kMost);
  std::vector<DecodeRowReport> reports;
  for (int row = 0; row < 5; ++row) reports.push_back({.row = row, .kv_len = kMost});
  StepReport step;
  step.num_rows = 5;
  step.tokens_attended = counts.data();
  step.tokens_read = counts.data();
  HeadTotals totals(shape);
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<HeadTotals::Row> rows;
    for (const DecodeRowReport& report : reports) {
      rows.push_back({.report = &report, .totals = &totals});
    }
    HeadTotals::Add(step, rows);
  }
  std::vector<LayerTotals> layers;
  totals.AddTo(layers);
  EXPECT_EQ(layers[0].keys_attended[0], int64_t{15} * kMost);
  EXPECT_EQ(layers[0].keys_read[0], int64_t{15} * kMost);
  EXPECT_EQ(layers[0].keys_eligible, int64_t{15} * kMost);
  HeadTotals both(shape);
  both.Add(totals);
  both.Add(totals);
  layers.clear();
  both.AddTo(layers);
  EXPECT_EQ(layers[0].keys_attended[0], int64_t{30} * kMost);
  EXPECT_EQ(layers[0].keys_eligible, int64_t{30} * kMost);
}

}  // namespace
}  // namespace eta
