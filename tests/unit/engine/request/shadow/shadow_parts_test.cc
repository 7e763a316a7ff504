// Who is measured, what that may cost, and when what was measured is too little.
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "engine/request/shadow/guarded_rows.h"
#include "engine/request/shadow/live_mass.h"
#include "engine/request/shadow/mass_estimate.h"
#include "engine/request/shadow/shadow_sampler.h"

namespace eta {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr int32_t kLayers = 32;
constexpr int64_t kKeyBytes = 4096;

std::vector<int32_t> AllLayers() {
  std::vector<int32_t> layers(kLayers);
  std::iota(layers.begin(), layers.end(), 0);
  return layers;
}

// Steps of `rows` decode rows, each over `kv_len` keys of which it reads `density`.
struct Load {
  int32_t rows = 8;
  int32_t kv_len = 4096;
  double density = 0.25;
  int64_t weight_bytes = 0;
  double rate = 0.001;
  int steps = 20000;
};

struct Played {
  int64_t drawn = 0;
  int64_t steps_with = 0;
  double bytes_measured = 0.0;
  double bytes_read = 0.0;
  int64_t longest = 0;  // T of a row-layer
  std::vector<int32_t> layers;
};

Played Play(const Load& load) {
  ShadowSampler sampler({.layers = AllLayers(),
                         .rate = load.rate,
                         .key_bytes = kKeyBytes,
                         .step_bytes = load.weight_bytes});
  Played played;
  ShadowRows out(kLayers, 1);
  std::vector<ShadowRow> rows;
  for (int32_t i = 0; i < load.rows; ++i) rows.push_back({.row = i, .kv_len = load.kv_len});
  const auto kv_bytes =
      static_cast<int64_t>(load.density * load.kv_len * kKeyBytes) * kLayers * load.rows;
  for (int step = 0; step < load.steps; ++step) {
    out.Clear();
    const int64_t drawn = sampler.Draw(rows, out);
    EXPECT_EQ(drawn, static_cast<int64_t>(out.size()));
    for (const ShadowRow& row : out.rows()) played.layers.push_back(row.layer);
    played.drawn += drawn;
    played.steps_with += drawn > 0 ? 1 : 0;
    played.bytes_measured += static_cast<double>(out.keys()) * kKeyBytes;
    played.bytes_read += static_cast<double>(kv_bytes + load.weight_bytes);
    sampler.Finish(
        sampler.Begin(),
        {.rows = load.rows, .kv_bytes = kv_bytes, .drawn = drawn, .drawn_keys = out.keys()});
  }
  return played;
}

TEST(ShadowSampler, DrawsItsRateInOneStepOfSixteen) {
  const Load load;
  const Played played = Play(load);
  const double wanted = load.rate * load.rows * kLayers * load.steps;
  EXPECT_NEAR(static_cast<double>(played.drawn), wanted, 0.01 * wanted);
  EXPECT_LE(played.steps_with, load.steps / ShadowSampler::kPeriod);
  const std::set<int32_t> layers(played.layers.begin(), played.layers.end());
  EXPECT_EQ(layers.size(), static_cast<size_t>(kLayers)) << "no layer is left out";
}

TEST(ShadowSampler, ReadsAtMostAHundredthOfWhatStepsRead) {
  for (const double rate : {0.001, 0.05, 1.0}) {
    for (const auto& [rows, kv_len, density] :
         {std::tuple(1, 131072, 0.02), std::tuple(4, 131072, 0.16), std::tuple(64, 2048, 0.5),
          std::tuple(1, 300, 0.9), std::tuple(16, 32768, 0.05)}) {
      for (const int64_t weights : {int64_t{0}, int64_t{1} << 28}) {
        const Played played = Play({.rows = rows,
                                    .kv_len = kv_len,
                                    .density = density,
                                    .weight_bytes = weights,
                                    .rate = rate,
                                    .steps = 4000});
        const double most =
            ShadowSampler::kShare * played.bytes_read + static_cast<double>(kv_len) * kKeyBytes;
        EXPECT_LE(played.bytes_measured, most) << rate << " " << rows << " x " << kv_len;
        if (rate == 1.0) {
          EXPECT_GE(played.bytes_measured, 0.5 * ShadowSampler::kShare * played.bytes_read)
              << rows << " x " << kv_len << ": the budget is used";
        }
      }
    }
  }
}

TEST(ShadowSampler, ADrawIsTheSameUntilItsStepBeginsAndInEveryRun) {
  EXPECT_EQ(Play({.steps = 3000}).layers, Play({.steps = 3000}).layers);
  ShadowSampler sampler(
      {.layers = AllLayers(), .rate = 0.1, .key_bytes = 1, .step_bytes = 1 << 30});
  const std::vector<ShadowRow> rows(1, {.row = 0, .kv_len = 100});
  for (int step = 0; step < 24; ++step) {
    ShadowRows once(kLayers, 1);
    ShadowRows again(kLayers, 1);
    EXPECT_EQ(sampler.Draw(rows, once), sampler.Draw(rows, again));
    ASSERT_EQ(once.size(), again.size());
    for (size_t i = 0; i < once.size(); ++i) {
      EXPECT_EQ(once.rows()[i].layer, again.rows()[i].layer);
    }
    sampler.Finish(sampler.Begin(), {.rows = 1, .drawn = static_cast<int64_t>(once.size())});
  }
}

TEST(ShadowSampler, ARateOfZeroDrawsNothing) {
  EXPECT_EQ(Play({.rate = 0.0}).drawn, 0);
}

TEST(ShadowSampler, WhatIsMeasuredForMinMassIsNotDrawnTwice) {
  ShadowSampler sampler({.layers = AllLayers(), .rate = 1.0, .key_bytes = 1, .step_bytes = 0});
  const std::vector<ShadowRow> rows(1, {.row = 0, .kv_len = 100});
  ShadowRows out(kLayers, 1);
  int64_t drawn = 0;
  for (int step = 0; step < 2000; ++step) {
    drawn += sampler.Draw(rows, out);
    // More than the budget: a hundredth of these bytes.
    sampler.Finish(sampler.Begin(), {.rows = 1, .kv_bytes = 10000, .guarded_keys = 200});
  }
  EXPECT_EQ(drawn, 0);
}

TEST(GuardedRows, AreTwoLayersOfEverySixteenthRow) {
  for (const int32_t layers : {1, 2, 3, 30, 80}) {
    std::set<int32_t> seen;
    int measured = 0;
    for (int32_t row = 0; row < 16000; ++row) {
      if (!GuardedRows::Measures(row)) continue;
      ++measured;
      const auto drawn = GuardedRows::Layers(row, layers);
      if (layers > 1) {
        EXPECT_NE(drawn[0], drawn[1]);
      }
      for (const int32_t layer : drawn) {
        EXPECT_GE(layer, 0);
        EXPECT_LT(layer, layers);
        seen.insert(layer);
      }
    }
    EXPECT_EQ(measured, 1000);
    EXPECT_EQ(seen.size(), static_cast<size_t>(layers));
  }
}

TEST(MassEstimate, OneBadRowDoesNotCount) {
  MassEstimate mass;
  for (int i = 0; i < 30; ++i) mass.Add(0.99);
  EXPECT_FALSE(mass.LiesUnder(0.97));
  mass.Add(0.0);
  mass.Add(0.0);  // two layers of the row
  EXPECT_FALSE(mass.LiesUnder(0.97)) << "the mean is 0.93";
  for (int i = 0; i < 30; ++i) mass.Add(0.8);
  EXPECT_TRUE(mass.LiesUnder(0.97));
  EXPECT_FALSE(mass.LiesUnder(0.7));
}

TEST(MassEstimate, SaysNothingOfFewRows) {
  MassEstimate mass;
  for (int64_t i = 1; i < MassEstimate::kLeast; ++i) mass.Add(0.1);
  EXPECT_FALSE(mass.LiesUnder(0.9));
  mass.Add(0.1);
  EXPECT_TRUE(mass.LiesUnder(0.9));
}

class LiveMassTest : public ::testing::Test {
 protected:
  static ResolvedAttention Under(int64_t version, float min_mass) {
    auto profile = std::make_shared<ThresholdProfile>();
    profile->name = "legal";
    profile->version = version;
    ResolvedAttention attention;
    attention.mode = AttentionMode::kProfile;
    attention.profile = std::move(profile);
    attention.min_mass = min_mass;
    return attention;
  }
  void Add(const ResolvedAttention& attention, float mass, int rows = 20) {
    MassEstimate masses;
    for (int i = 0; i < rows; ++i) masses.Add(mass);
    live_.Add("acme", attention, masses, now_);
  }
  bool BeginsFull(const ResolvedAttention& attention, const std::string& tenant = "acme") {
    return live_.BeginsFull(tenant, attention, now_);
  }

  LiveMass live_;
  Clock::time_point now_{minutes(100)};
};

TEST_F(LiveMassTest, RequestsOfAVersionThatLacksMassBeginFull) {
  Add(Under(1, 0.9f), 0.8f);
  EXPECT_TRUE(BeginsFull(Under(1, 0.9f)));
  EXPECT_FALSE(BeginsFull(Under(1, 0.7f))) << "that is what it asks for";
  EXPECT_FALSE(BeginsFull(Under(2, 0.9f))) << "another version";
  EXPECT_FALSE(BeginsFull(Under(1, 0.9f), "globex"));
  ResolvedAttention wider = Under(1, 0.9f);
  wider.options.offset = 1.0f;
  EXPECT_FALSE(BeginsFull(wider)) << "it does not attend alike";
  ResolvedAttention careless = Under(1, 0.9f);
  careless.min_mass.reset();
  EXPECT_FALSE(BeginsFull(careless));
}

TEST_F(LiveMassTest, OneInSixteenProbes) {
  Add(Under(1, 0.9f), 0.8f);
  int full = 0;
  for (int i = 0; i < 64; ++i) full += BeginsFull(Under(1, 0.9f)) ? 1 : 0;
  EXPECT_EQ(full, 60);
}

TEST_F(LiveMassTest, WhatIsOlderThanTenMinutesIsForgotten) {
  Add(Under(1, 0.9f), 0.8f);
  now_ += minutes(9);
  EXPECT_TRUE(BeginsFull(Under(1, 0.9f)));
  now_ += minutes(2);
  EXPECT_FALSE(BeginsFull(Under(1, 0.9f)));
  Add(Under(1, 0.9f), 0.99f);
  EXPECT_FALSE(BeginsFull(Under(1, 0.9f)));
}

TEST_F(LiveMassTest, HoldsSoManyKinds) {
  Add(Under(0, 0.9f), 0.8f);
  now_ += seconds(60);
  for (int64_t i = 1; i <= 2 * static_cast<int64_t>(LiveMass::kMostKinds); ++i) {
    Add(Under(i, 0.9f), 0.8f);
  }
  EXPECT_FALSE(BeginsFull(Under(0, 0.9f))) << "the one that was not measured for longest went";
  EXPECT_TRUE(BeginsFull(Under(2 * static_cast<int64_t>(LiveMass::kMostKinds), 0.9f)));
}

}  // namespace
}  // namespace eta
