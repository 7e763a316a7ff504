// Drawing tokens: the same token as the reference, and the properties that a user counts on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/params/sampling.h"
#include "tests/testing/base/special_floats.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

using ::testing::ValuesIn;

// Rows with every mixture of settings; what they point to lives here.
struct RandomRows {
  RandomRows(Random& random, int64_t count, int64_t vocabulary) : logits(count, vocabulary) {
    counts.resize(static_cast<size_t>(count));
    biases.resize(static_cast<size_t>(count));
    masks.resize(static_cast<size_t>(count));
    const auto often = [&](int out_of) { return Uniform(random, 1, out_of) == 1; };
    for (int64_t r = 0; r < count; ++r) {
      const bool ties = often(3);
      for (int64_t i = 0; i < vocabulary; ++i) {
        const double logit = UniformReal(random, -6.0, 6.0);
        logits.row(r)[i] = static_cast<float>(ties ? std::round(logit) : logit);
      }
      auto& count_list = counts[static_cast<size_t>(r)];
      auto& bias_list = biases[static_cast<size_t>(r)];
      for (int32_t id = 0; id < vocabulary; ++id) {
        if (often(5)) {
          count_list.push_back({id, static_cast<int32_t>(Uniform(random, 0, 2)),
                                static_cast<int32_t>(Uniform(random, 0, 3))});
        }
        if (often(20)) {
          bias_list.push_back(
              {id, often(3) ? -kInfinity : static_cast<float>(UniformReal(random, -4.0, 4.0))});
        }
      }
      SampleRow row;
      row.logits_row = static_cast<int32_t>(count - 1 - r);
      row.temperature = often(5) ? 0.0f : static_cast<float>(UniformReal(random, 0.2, 2.0));
      row.top_k = often(2) ? 0 : static_cast<int32_t>(Uniform(random, 1, vocabulary + 2));
      row.top_p = often(2) ? 1.0f : static_cast<float>(UniformReal(random, 0.01, 1.0));
      row.min_p = often(2) ? 0.0f : static_cast<float>(UniformReal(random, 0.0, 0.5));
      row.repetition_penalty = often(2) ? 1.0f : static_cast<float>(UniformReal(random, 0.7, 1.6));
      row.presence_penalty = often(2) ? 0.0f : static_cast<float>(UniformReal(random, -1.0, 1.5));
      row.frequency_penalty = often(2) ? 0.0f : static_cast<float>(UniformReal(random, -1.0, 1.5));
      row.uniform = UniformReal(random, 0.0, 1.0);
      row.num_logprobs =
          static_cast<int32_t>(Uniform(random, -1, std::min<int64_t>(5, vocabulary)));
      if (often(10)) row.forced = static_cast<int32_t>(Uniform(random, 0, vocabulary - 1));
      rows.push_back(row);
    }
    for (size_t r = 0; r < rows.size(); ++r) {
      rows[r].counts = counts[r];
      rows[r].bias = biases[r];
    }
  }

  // Gives two rows of three a mask: of all densities, some with whole words of either kind, with
  // bits behind the vocabulary set at random.
  void Mask(Random& random) {
    for (size_t r = 0; r < rows.size(); ++r) {
      if (Uniform(random, 0, 2) == 0) continue;
      const double density = std::pow(10.0, UniformReal(random, -3.5, 0.0));
      std::vector<uint32_t>& mask = masks[r];
      mask.resize(MaskWords(logits.cols));
      for (uint32_t& word : mask) {
        const auto kind = Uniform(random, 0, 5);
        if (kind == 0) word = UniformReal(random, 0.0, 1.0) < density ? ~0u : 0u;
        for (uint32_t bit = 0; kind > 0 && bit < 32; ++bit) {
          if (UniformReal(random, 0.0, 1.0) < density) word |= 1u << bit;
        }
      }
      rows[r].mask = mask;
    }
  }

  // The rows with room of their own for alternatives.
  std::vector<SampleRow> Rows(std::vector<std::vector<TokenLogprob>>& top) const {
    std::vector<SampleRow> copy = rows;
    top.assign(copy.size(), {});
    for (size_t r = 0; r < copy.size(); ++r) {
      top[r].resize(static_cast<size_t>(std::max(0, copy[r].num_logprobs)));
      copy[r].top = top[r];
    }
    return copy;
  }

  HostTensor logits;
  std::vector<SampleRow> rows;
  std::vector<std::vector<TokenCount>> counts;
  std::vector<std::vector<LogitBias>> biases;
  std::vector<std::vector<uint32_t>> masks;
};

class SamplingOn : public ::testing::TestWithParam<BackendUnderTest> {
 protected:
  SamplingOn() : device(GetParam()) {}

  void SetUp() override {
    if (!WhyMissing(GetParam()).empty()) GTEST_SKIP() << WhyMissing(GetParam());
  }

  void Sample(Device& on, const HostTensor& logits, std::span<SampleRow> rows) {
    const std::vector<int32_t> tokens(static_cast<size_t>(logits.rows));
    const SequenceRows sequences[] = {{.num_rows = static_cast<int32_t>(logits.rows)}};
    const TensorView view = on.Put(logits, 9);
    on->Plan({tokens, sequences});
    on->Sample({view, rows});
    EXPECT_TRUE(on->Finish().ok());
  }

  SampleRow One(const std::vector<float>& logits, SampleRow row = {}) {
    HostTensor tensor(1, static_cast<int64_t>(logits.size()));
    tensor.data = logits;
    Sample(device, tensor, {&row, 1});
    return row;
  }

  // That the device fills in what the reference does.
  void ExpectTheReferences(const RandomRows& made) {
    std::vector<std::vector<TokenLogprob>> top[2];
    std::vector<SampleRow> want = made.Rows(top[0]);
    std::vector<SampleRow> got = made.Rows(top[1]);
    Sample(judge, made.logits, want);
    Sample(device, made.logits, got);
    for (size_t r = 0; r < want.size(); ++r) {
      SCOPED_TRACE("row " + std::to_string(r) + " of vocabulary " +
                   std::to_string(made.logits.cols));
      EXPECT_EQ(got[r].finite, want[r].finite);
      EXPECT_EQ(got[r].barred, want[r].barred);
      EXPECT_EQ(got[r].token, want[r].token);
      if (want[r].num_logprobs < 0 || !want[r].finite) continue;
      EXPECT_NEAR(got[r].logprob, want[r].logprob, 1e-5);
      for (size_t i = 0; i < want[r].top.size(); ++i) {
        EXPECT_EQ(got[r].top[i].id, want[r].top[i].id);
        EXPECT_NEAR(got[r].top[i].logprob, want[r].top[i].logprob, 1e-5);
      }
    }
  }

  Device judge{{"reference"}};
  Device device;
};

TEST_P(SamplingOn, DrawsTheReferencesTokensAndLogprobs) {
  Random random(31);
  for (const int64_t vocabulary : {1, 5, 40, 300, 3000}) {
    ExpectTheReferences(RandomRows(random, 600, vocabulary));
  }
}

TEST_P(SamplingOn, DrawsTheReferencesTokensOfMasks) {
  Random random(35);
  for (const int64_t vocabulary : {1, 5, 31, 32, 33, 300, 3001}) {
    RandomRows made(random, 600, vocabulary);
    made.Mask(random);
    ExpectTheReferences(made);
  }
}

// What a mask keeps away might as well not be in the vocabulary, but for the log-probabilities.
TEST_P(SamplingOn, AMaskLeavesTheDrawOfAVocabularyWithoutTheOthers) {
  Random random(36);
  constexpr int64_t kVocabulary = 500;
  for (int round = 0; round < 40; ++round) {
    RandomRows made(random, 20, kVocabulary);
    std::vector<uint32_t> mask(MaskWords(kVocabulary));
    std::vector<int32_t> kept;
    const auto one_out_of = static_cast<int>(Uniform(random, 1, 100));
    for (int32_t id = 0; id < kVocabulary; ++id) {
      if (!Often(random, one_out_of)) continue;
      kept.push_back(id);
      mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    }
    if (kept.empty()) continue;
    const auto place = [&](int32_t id) {
      const auto found = std::ranges::find(kept, id);
      return found == kept.end() ? -1 : static_cast<int32_t>(found - kept.begin());
    };
    // The small vocabulary, where ids are places.
    RandomRows small = made;
    small.logits = HostTensor(20, static_cast<int64_t>(kept.size()));
    std::vector<std::vector<TokenLogprob>> top[2];
    for (size_t r = 0; r < 20; ++r) {
      for (size_t i = 0; i < kept.size(); ++i) {
        small.logits.row(static_cast<int64_t>(r))[i] =
            made.logits.row(static_cast<int64_t>(r))[kept[i]];
      }
      for (TokenCount& count : small.counts[r]) count.id = place(count.id);
      for (LogitBias& bias : small.biases[r]) bias.id = place(bias.id);
      std::erase_if(small.counts[r], [](const TokenCount& count) { return count.id < 0; });
      std::erase_if(small.biases[r], [](const LogitBias& bias) { return bias.id < 0; });
      made.rows[r].forced = small.rows[r].forced = -1;
      made.rows[r].mask = mask;
      small.rows[r].num_logprobs = -1;
      small.rows[r].counts = small.counts[r];
      small.rows[r].bias = small.biases[r];
    }
    std::vector<SampleRow> masked = made.Rows(top[0]);
    std::vector<SampleRow> alone = small.Rows(top[1]);
    Sample(device, made.logits, masked);
    Sample(device, small.logits, alone);
    for (size_t r = 0; r < 20; ++r) {
      EXPECT_EQ(masked[r].barred, alone[r].barred);
      EXPECT_EQ(place(masked[r].token), alone[r].token) << "row " << r << " of " << kept.size();
    }
  }
}

TEST_P(SamplingOn, AMaskBindsGreedyDrawsAndNoKnownToken) {
  const std::vector<uint32_t> mask = {0b10110};
  EXPECT_EQ(One({9, 1, 3, 8, 3}, {.temperature = 0.0f, .mask = mask}).token, 2);
  EXPECT_EQ(One({9, 1, 3, 8, 3}, {.top_k = 1, .uniform = 0.9, .mask = mask}).token, 2);
  EXPECT_EQ(One({9, 1, 3, 8, 3}, {.temperature = 0.0f, .mask = mask, .forced = 3}).token, 3);
  std::vector<TokenLogprob> top(1);
  const SampleRow row = One({std::log(0.6f), std::log(0.1f), std::log(0.3f)},
                            {.temperature = 0.0f, .mask = mask, .num_logprobs = 1, .top = top});
  EXPECT_EQ(row.token, 2);
  EXPECT_NEAR(row.logprob, std::log(0.3), 1e-5) << "of the model's whole vocabulary";
  EXPECT_EQ(top[0].id, 0) << "which the mask does not allow";
}

TEST_P(SamplingOn, WhatLeavesNoTokenIsToldApartFromBrokenLogits) {
  const std::vector<uint32_t> none = {~0b1111u};  // bits behind the vocabulary
  const std::vector<uint32_t> one = {0b0100};
  const std::vector<LogitBias> forbid = {{2, -kInfinity}};
  for (const float temperature : {0.0f, 1.0f}) {
    for (const SampleRow& made :
         {SampleRow{.temperature = temperature, .mask = none},
          SampleRow{.temperature = temperature, .bias = forbid, .mask = one}}) {
      const SampleRow row = One({0, 1, 2, 3}, made);
      EXPECT_FALSE(row.finite);
      EXPECT_TRUE(row.barred);
      EXPECT_EQ(row.token, -1);
    }
    SampleRow row = One({0, 1, -kInfinity, 3}, {.temperature = temperature, .mask = one});
    EXPECT_TRUE(row.barred) << "the model gives the only one no weight";
    row = One({0, 1, 2, std::nanf("")}, {.temperature = temperature, .mask = one});
    EXPECT_FALSE(row.finite);
    EXPECT_FALSE(row.barred) << "no mask hides a NaN";
    row = One({0, 1, 2, 3}, {.temperature = temperature, .mask = one});
    EXPECT_TRUE(row.finite);
    EXPECT_FALSE(row.barred);
    EXPECT_EQ(row.token, 2);
  }
}

TEST_P(SamplingOn, TopKOneIsGreedy) {
  Random random(32);
  const HostTensor logits = Normal(random, 200, 77, 2.0f);
  std::vector<SampleRow> greedy(200);
  std::vector<SampleRow> top_one(200);
  for (int32_t r = 0; r < 200; ++r) {
    greedy[static_cast<size_t>(r)] = {.logits_row = r, .temperature = 0.0f};
    top_one[static_cast<size_t>(r)] = {
        .logits_row = r, .temperature = 1.7f, .top_k = 1, .uniform = UniformReal(random, 0.0, 1.0)};
  }
  Sample(device, logits, greedy);
  Sample(device, logits, top_one);
  for (size_t r = 0; r < 200; ++r) {
    EXPECT_EQ(top_one[r].token, greedy[r].token);
    const float* row = logits.row(static_cast<int64_t>(r));
    EXPECT_EQ(greedy[r].token, std::max_element(row, row + 77) - row);
  }
}

TEST_P(SamplingOn, EqualLogitsFallToTheLowestId) {
  EXPECT_EQ(One({1, 3, 2, 3}, {.temperature = 0.0f}).token, 1);
  EXPECT_EQ(One({1, 3, 2, 3}, {.top_k = 1, .uniform = 0.999}).token, 1);
  EXPECT_EQ(One({0, 0, 0, 0}, {.uniform = 0.3}).token, 1);
}

TEST_P(SamplingOn, AForbiddenTokenIsNeverDrawn) {
  Random random(33);
  const std::vector<LogitBias> forbid = {{2, -kInfinity}, {5, -kInfinity}};
  HostTensor logits(1, 8);
  logits.data[2] = 30.0f;
  std::vector<SampleRow> rows(4000);
  for (SampleRow& row : rows) row = {.uniform = UniformReal(random, 0.0, 1.0), .bias = forbid};
  rows[0].uniform = std::nextafter(1.0, 0.0);
  rows[1].temperature = 0.0f;
  Sample(device, logits, rows);
  std::set<int32_t> drawn;
  for (const SampleRow& row : rows) drawn.insert(row.token);
  EXPECT_THAT(drawn, ::testing::ElementsAre(0, 1, 3, 4, 6, 7));
}

TEST_P(SamplingOn, TemperatureOneDrawsTheModelsDistribution) {
  Random random(34);
  const std::vector<double> logits = {0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 1.5, 0.2};
  HostTensor tensor(1, 8);
  double total = 0.0;
  for (size_t i = 0; i < 8; ++i) {
    tensor.data[i] = static_cast<float>(logits[i]);
    total += std::exp(logits[i]);
  }
  constexpr int kDraws = 20000;
  std::vector<SampleRow> rows(kDraws);
  for (SampleRow& row : rows) row.uniform = UniformReal(random, 0.0, 1.0);
  Sample(device, tensor, rows);
  std::vector<int> drawn(8);
  for (const SampleRow& row : rows) {
    ASSERT_TRUE(row.token >= 0 && row.token < 8) << row.token;
    ++drawn[static_cast<size_t>(row.token)];
  }
  double chi_square = 0.0;
  for (size_t i = 0; i < 8; ++i) {
    const double expected = kDraws * std::exp(logits[i]) / total;
    chi_square += (drawn[i] - expected) * (drawn[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 24.3);  // 7 degrees of freedom, 0.1 %
}

TEST_P(SamplingOn, TopPKeepsTheShortestPrefixThatHoldsTheMass) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f),
                                     std::log(0.05f)};
  EXPECT_EQ(One(logits, {.top_p = 0.4f, .uniform = 0.999}).token, 0);
  EXPECT_EQ(One(logits, {.top_p = 0.7f, .uniform = 0.999}).token, 1);
  EXPECT_EQ(One(logits, {.top_p = 0.7f, .uniform = 0.61}).token, 0);  // 0.5 / 0.8 = 0.625
  EXPECT_EQ(One(logits, {.top_p = 0.9f, .uniform = 0.999}).token, 2);
  EXPECT_EQ(One(logits, {.top_p = 1e-6f, .uniform = 0.999}).token, 0);
  EXPECT_EQ(One(logits, {.min_p = 0.5f, .uniform = 0.999}).token, 1);  // 0.3 is, 0.15 is not
}

TEST_P(SamplingOn, PenaltiesActOnWhatWasSeen) {
  const std::vector<TokenCount> counts = {{0, 1, 0}, {1, 0, 2}};
  // Repetition sees prompt and answer, and pushes negative logits down too.
  EXPECT_EQ(One({4, 4, 3}, {.temperature = 0, .repetition_penalty = 2, .counts = counts}).token, 2);
  EXPECT_EQ(
      One({-1, -1, -1.5}, {.temperature = 0, .repetition_penalty = 2, .counts = counts}).token, 2);
  // Presence and frequency see the answer only.
  EXPECT_EQ(One({4, 5, 3}, {.temperature = 0, .presence_penalty = 1.5f, .counts = counts}).token,
            0);
  EXPECT_EQ(One({3.5, 5, 3}, {.temperature = 0, .frequency_penalty = 1, .counts = counts}).token,
            0);
}

TEST_P(SamplingOn, LogprobsAreTheModelsOwn) {
  const std::vector<LogitBias> forbid = {{0, -kInfinity}};
  std::vector<TokenLogprob> top(2);
  const SampleRow row = One({std::log(0.6f), std::log(0.1f), std::log(0.3f)},
                            {.temperature = 0.0f, .bias = forbid, .num_logprobs = 2, .top = top});
  EXPECT_EQ(row.token, 2);
  EXPECT_NEAR(row.logprob, std::log(0.3), 1e-5);
  EXPECT_EQ(top[0].id, 0);
  EXPECT_NEAR(top[0].logprob, std::log(0.6), 1e-5);
  EXPECT_EQ(top[1].id, 2);
}

TEST_P(SamplingOn, BrokenLogitsAreReportedAndNothingIsDrawn) {
  for (const float broken : {std::nanf(""), kInfinity}) {
    const SampleRow row = One({0, broken, 1, 2});
    EXPECT_FALSE(row.finite);
    EXPECT_EQ(row.token, -1);
  }
  const SampleRow fine = One({0, -kInfinity, 1, 2}, {.temperature = 0.0f});
  EXPECT_TRUE(fine.finite);
  EXPECT_EQ(fine.token, 3);
}

TEST_P(SamplingOn, WithEveryTokenForbiddenNothingIsDrawn) {
  const std::vector<LogitBias> forbid = {{0, -kInfinity}, {1, -kInfinity}};
  for (const float temperature : {0.0f, 1.0f}) {
    const SampleRow row = One({0, 1}, {.temperature = temperature, .bias = forbid});
    EXPECT_EQ(row.token, -1);
    EXPECT_TRUE(row.barred);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, SamplingOn, ValuesIn(AllBackends()),
                         [](const auto& test) { return TestName(test.param); });

}  // namespace
}  // namespace eta::testing
