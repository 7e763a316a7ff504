// Rivals of the product's selection: whom they choose, and what a model does with it.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "calibration/evaluation/attention/fit_constants.h"
#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/rivals/block_scores.h"
#include "calibration/evaluation/rivals/constants.h"
#include "calibration/evaluation/rivals/h2o.h"
#include "calibration/evaluation/rivals/oracle.h"
#include "calibration/evaluation/rivals/quest.h"
#include "calibration/evaluation/rivals/rival_backend.h"
#include "calibration/evaluation/rivals/top_k.h"
#include "calibration/evaluation/rivals/window.h"
#include "calibration/evaluation/runtime/runner.h"
#include "engine/base/error.h"
#include "engine/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "kernels/block_bound.h"
#include "kernels/forwarding_backend.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::TinyModel;

TEST(AdmitLargest, TakesAShareOfWhatIsOpenRoundedUp) {
  const std::vector<float> values = {9.0f, 1.0f, 5.0f, 5.0f, 2.0f, 7.0f};
  std::vector<uint8_t> admitted = {1, 0, 0, 0, 0, 0};
  AdmitLargest(values, 0.3, admitted);  // 2 of 5; the first 5 before the second
  EXPECT_THAT(admitted, ElementsAre(1, 0, 1, 0, 0, 1));
  AdmitLargest(values, 0.0, admitted);
  EXPECT_THAT(admitted, ElementsAre(1, 0, 1, 0, 0, 1));
  AdmitLargest(values, 1.0, admitted);
  EXPECT_THAT(admitted, Each(1));
}

TEST(BlockScores, AreProductsAndTheirMassIsTheirLogSumExp) {
  for (const size_t d : {size_t{2}, size_t{20}, size_t{64}}) {
    for (const size_t n : {size_t{1}, size_t{5}, size_t{16}, size_t{67}}) {
      std::vector<float> q(d);
      std::vector<float> keys(n * d);
      const size_t stride = KeyColumns::StrideFor(n);
      std::vector<float> columns(d * stride, 1e30f);
      for (size_t i = 0; i < d; ++i) q[i] = std::sin(static_cast<float>(i) + 1.0f) * 9.0f;
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = std::cos(static_cast<float>(i) * 1.7f);
      for (size_t i = 0; i < keys.size(); ++i) columns[i % d * stride + i / d] = keys[i];
      const KeyColumns by_coordinate = {.values = columns, .stride = stride, .count = n};
      const ScoreGate gate = {.silu = true, .beta = 5.0f, .threshold = 0.3f};
      std::vector<double> scores(n);
      double mass = 0.0;
      double gated = 0.0;
      for (size_t t = 0; t < n; ++t) {
        for (size_t i = 0; i < d; ++i) scores[t] += 0.5 * q[i] * keys[t * d + i];
        mass += std::exp(scores[t]);
        const bool own = t + 1 == n;
        gated += std::exp(own ? scores[t] : scores[t] / (1.0 + std::exp(-5.0 * (scores[t] - 0.3))));
      }
      const std::vector<float> got = BlockScores(by_coordinate, q, 0.5f);
      ASSERT_EQ(got.size(), n);
      for (size_t t = 0; t < n; ++t) EXPECT_NEAR(got[t], scores[t], 1e-4) << d << " " << n;
      EXPECT_NEAR(LogMass(by_coordinate, q, 0.5f), std::log(mass), 1e-4) << d << " " << n;
      std::vector<float> logits(n);
      GatedLogits(by_coordinate, q, 0.5f, gate, /*own=*/true, logits);
      const float max = Largest(logits);
      EXPECT_EQ(max, *std::ranges::max_element(logits));
      EXPECT_NEAR(max + std::log(Exponentials(logits, max)), std::log(gated), 1e-4)
          << d << " " << n;
      EXPECT_EQ(*std::ranges::max_element(logits), 1.0f);
      std::vector<float> sums(d, 2.0f);
      AddWeighted(keys, logits, sums);
      for (size_t i = 0; i < d; ++i) {
        double sum = 2.0;
        for (size_t t = 0; t < n; ++t) sum += static_cast<double>(logits[t]) * keys[t * d + i];
        EXPECT_NEAR(sums[i], sum, 1e-4) << d << " " << n;
      }
    }
  }
}

TEST(ConstantsForUnion, ReadsTheUnionThatIsAskedFor) {
  // One layer, two query heads of one KV head, 20 blocks of 4 and no tail. The heads want the same
  // blocks, so that their union grows with their share.
  SampledBounds row = {.layer = 0, .num_keys = 80, .bounds = {}};
  row.bounds.resize(2);
  for (int j = 0; j < 20; ++j) {
    row.bounds[0].push_back(static_cast<float>(j * 7 % 20));
    row.bounds[1].push_back(100.0f + static_cast<float>(j * 7 % 20));
  }
  const ConstantsShape shape = {
      .num_layers = 1, .num_query_heads = 2, .num_kv_heads = 1, .block_size = 4};
  const AttentionOptions options = {.pinned_blocks = 2, .sink_blocks = 1};
  const auto read = [&](const std::vector<float>& thresholds) {
    int blocks = 0;
    for (size_t j = 0; j < 20; ++j) {
      blocks += j == 0 || j >= 18 || row.bounds[0][j] >= thresholds[0] ||
                row.bounds[1][j] >= thresholds[1];
    }
    return blocks / 20.0;
  };
  for (const double wanted : {0.15, 0.4, 0.75, 1.0}) {
    const auto thresholds = ConstantsForUnion({row}, shape, options, wanted).value();
    EXPECT_THAT(read(thresholds), DoubleNear(wanted, 0.051)) << wanted;
    EXPECT_NEAR(thresholds[1] - thresholds[0], wanted > 0.15 ? 100.0f : 0.0f, 1e-3f);
  }
  EXPECT_EQ(GetErrorDetail(ConstantsForUnion({row}, shape, options, 0.1).status()).field,
            "attention")
      << "three blocks are always read";
  EXPECT_EQ(GetErrorDetail(ConstantsForUnion({}, shape, options, 0.5).status()).field, "attention");
}

// A plain model of blocks of 16, on the reference.
class RivalsTest : public ::testing::Test {
 protected:
  static constexpr int32_t kContext = 200;
  static constexpr int32_t kPrefill = 100;

  RivalsTest()
      : backend_(std::make_shared<RivalBackend>(*MakeBackend({.name = "reference"}), 2)),
        model_({.has_predictor = false}),
        checkpoint_(*Checkpoint::Open(model_.path())) {
    const auto config = ParseModelConfig(checkpoint_.config_json());
    runner_ = *SequenceRunner::Create(
        checkpoint_, *backend_,
        {.geometry = MakeKvGeometry(*config, DType::kFloat32), .max_context = kContext});
    std::vector<int32_t> window(kContext + 1);
    for (size_t i = 0; i < window.size(); ++i) window[i] = static_cast<int32_t>(i * i * 37 % 8000);
    windows_ = {window};
  }

  static EvaluatedAttention Way(std::shared_ptr<const Rival> rival, AttentionOptions options) {
    options.uniform_floor = false;
    return {{.options = options}, "rival", std::move(rival)};
  }
  std::vector<AttentionScore> Score(const std::vector<EvaluatedAttention>& attentions) {
    auto scores =
        EvaluatePerplexity(OnlyRunner(*runner_), windows_, attentions,
                           {.prefill = kPrefill, .recall = false, .rivals = backend_.get()});
    EXPECT_TRUE(scores.ok()) << scores.status();
    return *std::move(scores);
  }

  std::shared_ptr<RivalBackend> backend_;
  TinyModel model_;
  Checkpoint checkpoint_;
  std::unique_ptr<SequenceRunner> runner_;
  std::vector<std::vector<int32_t>> windows_;
};

TEST_F(RivalsTest, WhoeverAdmitsAllComputesFullAttention) {
  const AttentionOptions options = {.shared_reads = true};
  const auto scores =
      Score({{{.options = {.uniform_floor = false, .admit_all = true}}, "full"},
             Way(MakeTopK(1.0), options),
             Way(MakeQuest(1.0), options),
             Way(MakeQuest(0.0, 2), options),
             Way(MakeOracle(-100.0f), options),
             Way(MakeWindow({1e6}), options),
             Way(MakeBigBird({1.0}, 1), options),
             Way(MakeH2o({.window = {16.0}, .share = 1.0}), options),
             Way(MakeH2o({.window = {16.0}, .share = 1.0, .by_key = false}), options)});
  for (const AttentionScore& score : scores) {
    EXPECT_NEAR(score.loss.mean, scores[0].loss.mean, 1e-5);
    EXPECT_DOUBLE_EQ(score.union_density, 1.0);
    EXPECT_DOUBLE_EQ(score.head_density, 1.0);
    EXPECT_DOUBLE_EQ(score.top_1, scores[0].top_1);
  }
}

TEST_F(RivalsTest, WhoeverAdmitsNothingReadsWhatIsAlwaysRead) {
  const AttentionOptions options = {.pinned_blocks = 2, .sink_blocks = 1};
  double wanted = 0.0;
  for (int32_t keys = kPrefill + 1; keys <= kContext; ++keys) {
    wanted += (3 * 16 + keys % 16) / static_cast<double>(keys);
  }
  wanted /= kContext - kPrefill;
  for (const auto& score : Score({Way(MakeTopK(0.0), options), Way(MakeQuest(0.0), options),
                                  Way(MakeOracle(100.0f), options)})) {
    EXPECT_NEAR(score.union_density, wanted, 1e-9);
    EXPECT_NEAR(score.head_density, wanted, 1e-9);
    EXPECT_FALSE(score.recall.has_value());
  }
}

TEST_F(RivalsTest, LayersThatStayDenseReadAllAndChooseNothing) {
  const AttentionOptions options = {.pinned_blocks = 2, .sink_blocks = 1};
  const auto scores = Score({Way(MakeQuest(0.2), options), Way(MakeQuest(0.2, 1), options),
                             Way(MakeQuest(0.2, 2), options)});
  // Of the two layers.
  EXPECT_NEAR(scores[1].union_density, (1.0 + scores[0].union_density) / 2.0, 0.06);
  EXPECT_NEAR(scores[1].index_read, scores[0].index_read / 2.0, 1e-9);
  EXPECT_DOUBLE_EQ(scores[2].union_density, 1.0);
  EXPECT_DOUBLE_EQ(scores[2].index_read, 0.0);
}

TEST_F(RivalsTest, SharedReadsAttendToWhatTheGroupReads) {
  const auto scores = Score({Way(MakeTopK(0.3), {}), Way(MakeTopK(0.3), {.shared_reads = true})});
  // The second layer's queries are others.
  EXPECT_NEAR(scores[0].union_density, scores[1].union_density, 0.02);
  EXPECT_LT(scores[0].head_density, scores[0].union_density);
  EXPECT_NE(scores[0].loss.mean, scores[1].loss.mean);
}

TEST_F(RivalsTest, ConstantsReadAboutTheUnionThatTheyWereFittedTo) {
  std::vector<EvaluatedAttention> ways = {Way(nullptr, {.pinned_blocks = 1, .sink_blocks = 1})};
  ways[0].constants = 0.6;
  ASSERT_EQ(FitConstants(OnlyRunner(*runner_), *backend_, windows_[0], kPrefill, {}, ways),
            absl::OkStatus());
  ASSERT_NE(ways[0].profile, nullptr);
  EXPECT_EQ(ways[0].profile->thresholds.size(), 2u * 4u);
  EXPECT_NEAR(Score(ways)[0].union_density, 0.6, 0.05);
  ways[0].constants = 0.01;
  EXPECT_EQ(
      GetErrorDetail(FitConstants(OnlyRunner(*runner_), *backend_, windows_[0], kPrefill, {}, ways))
          .field,
      "attention");
}

TEST(FitConstants, TempersKeysAsTheirJudgeDoes) {
  const TinyModel model;
  const auto checkpoint = Checkpoint::Open(model.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto config = ParseModelConfig(checkpoint->config_json());
  RivalBackend backend(*MakeBackend({.name = "reference"}), 2);
  const auto runner = SequenceRunner::Create(
      *checkpoint, backend,
      {.geometry = MakeKvGeometry(*config, DType::kFloat32), .max_context = 200});
  ASSERT_TRUE(runner.ok()) << runner.status();
  std::vector<int32_t> window(201);
  for (size_t i = 0; i < window.size(); ++i) window[i] = static_cast<int32_t>(i * i * 37 % 8000);
  const int32_t special_ids[] = {0, 37};
  const auto fitted = [&](bool temper, std::span<const int32_t> ids) {
    std::vector<EvaluatedAttention> ways(1);
    ways[0].temper_special = temper;
    ways[0].constants = 0.7;
    EXPECT_EQ(FitConstants(OnlyRunner(**runner), backend, window, 100, ids, ways),
              absl::OkStatus());
    return ways[0].profile ? ways[0].profile->thresholds : std::vector<float>();
  };
  const std::vector<float> plain = fitted(false, special_ids);
  EXPECT_EQ(plain, fitted(true, {}));
  EXPECT_NE(plain, fitted(true, special_ids));
}

// The kinds that read records, boxes, keys and sums; a window has none. By key H2O has sums of the
// keys that it keeps: a quarter, and half of the others.
TEST_F(RivalsTest, WhatIsReadToChooseIsCountedInBytes) {
  const AttentionOptions options = {.pinned_blocks = 2, .sink_blocks = 1};
  const auto scores = Score(
      {Way(nullptr, options), Way(MakeTopK(0.3), options), Way(MakeQuest(0.3), options),
       Way(MakeOracle(-2.0f), options),
       Way(MakeH2o({.window = {16.0}, .share = 0.3, .by_key = false}), options),
       Way(MakeWindow({16.0}), options), Way(MakeH2o({.window = {0.25}, .share = 0.5}), options)});
  // Of a KV head: K and V of a token take 2 * 32 * 4 bytes.
  const auto share = [](double bytes_per_block) {
    double sum = 0.0;
    for (int32_t keys = kPrefill + 1; keys <= kContext; ++keys) {
      sum += (keys / 16) * bytes_per_block / (keys * 256.0);
    }
    return sum / (kContext - kPrefill);
  };
  const double wanted[] = {3 * 32 + 4, 3 * 32 + 4, 2 * 32 * 4,        16 * 32 * 4,
                           2 * 4,      0,          16 * 0.625 * 2 * 4};
  for (size_t i = 0; i < scores.size(); ++i) {
    EXPECT_NEAR(scores[i].index_read, share(wanted[i]), 1e-9) << i;
    EXPECT_NEAR(scores[i].bytes_read(), scores[i].union_density + share(wanted[i]), 1e-9) << i;
  }
}

// Judges what a rival is asked, by the keys and records of the cache as they come to it.
class Judge final : public Rival {
 public:
  KeptParts needs() const override { return {.records = true, .keys = true, .boxes = true}; }
  int64_t IndexBytes(const KvGeometry&, int32_t) const override { return 0; }

  void Admit(const RivalHead& head, std::span<uint8_t> admitted) const override {
    const auto chosen = [&](const std::shared_ptr<const Rival>& rival) {
      std::vector<uint8_t> blocks(admitted.begin(), admitted.end());
      rival->Admit(head, blocks);
      return blocks;
    };
    const std::vector<double> masses = Masses(head);
    const double row = LogSum(masses);
    const std::vector<uint8_t> by_mass = chosen(MakeOracle(-2.0f));
    const std::vector<uint8_t> none = chosen(MakeOracle(50.0f));
    for (size_t j = 0; j < admitted.size(); ++j) {
      if (std::abs(masses[j] - row + 2.0) < 1e-4) continue;  // a near tie
      EXPECT_EQ(by_mass[j] != 0, none[j] != 0 || masses[j] - row >= -2.0) << "block " << j;
    }
    for (int32_t j = 0; j < static_cast<int32_t>(admitted.size()); ++j) {
      const double largest = Largest(head, j);
      const KvGeometry& geometry = head.blocks.layer.geometry();
      const float box = Box(head, j);
      EXPECT_GE(box, largest - 1e-4) << "a box bounds its keys";
      const RecordView record = head.blocks.record(j).View();
      EXPECT_GE(BoundOf(record, head.q, head.softmax_scale).At(16.0f), largest - 1e-4);
      const double estimate =
          BlockMass<double>(ScoresOf(record, head.q, head.softmax_scale), geometry.block_size - 1);
      EXPECT_NEAR(estimate, Estimate(head, j), 1e-4);
    }
    // Quest's first choice among all is the largest box.
    std::vector<uint8_t> one(admitted.size());
    MakeQuest(1e-9)->Admit(head, one);
    const auto best = std::ranges::find(one, 1) - one.begin();
    for (int32_t j = 0; j < static_cast<int32_t>(one.size()); ++j) {
      EXPECT_LE(Box(head, j), Box(head, static_cast<int32_t>(best)) + 1e-5f);
    }
    std::ranges::fill(admitted, uint8_t{1});
  }

 private:
  // l_j of eta-semantics.md, "Relative thresholds", in double.
  static double Estimate(const RivalHead& head, int32_t block) {
    const BlockRecord& record = head.blocks.record(block);
    double variance = 0.0;
    for (size_t i = 0; i < head.q.size(); ++i) {
      variance += std::pow(static_cast<double>(head.q[i]) * record.sigma[i], 2) / 2.68;
    }
    const double v = variance * head.softmax_scale * head.softmax_scale;
    const double others = head.blocks.block_size() - 1.0;
    const double reach = std::sqrt(2.0 * std::log(others));
    const double lift = std::sqrt(v) < reach ? v / 2.0 : reach * std::sqrt(v) - reach * reach / 2.0;
    return std::log(others * std::exp(Score(head, record.mu) + lift) +
                    std::exp(Score(head, record.outlier)));
  }
  static double Score(const RivalHead& head, std::span<const float> key) {
    return head.softmax_scale * std::inner_product(head.q.begin(), head.q.end(), key.begin(), 0.0);
  }
  static std::vector<std::vector<float>> Keys(const RivalHead& head, int32_t block) {
    const KeyColumns columns = head.blocks.keys(block);
    std::vector<std::vector<float>> keys(columns.count, std::vector<float>(head.q.size()));
    for (size_t t = 0; t < keys.size(); ++t) {
      for (size_t i = 0; i < head.q.size(); ++i) {
        keys[t][i] = columns.values[i * columns.stride + t];
      }
    }
    return keys;
  }
  static double Largest(const RivalHead& head, int32_t block) {
    double largest = -INFINITY;
    for (const std::vector<float>& key : Keys(head, block)) {
      largest = std::max(largest, Score(head, key));
    }
    return largest;
  }
  static float Box(const RivalHead& head, int32_t block) {
    float sum = 0.0f;
    for (size_t i = 0; i < head.q.size(); ++i) {
      sum +=
          std::max(head.q[i] * head.blocks.low(block)[i], head.q[i] * head.blocks.high(block)[i]);
    }
    return head.softmax_scale * sum;
  }
  // Of every block of the row, the last one included.
  static std::vector<double> Masses(const RivalHead& head) {
    std::vector<double> masses;
    for (int32_t j = 0; j * head.blocks.block_size() < head.blocks.num_keys; ++j) {
      double sum = 0.0;
      for (const std::vector<float>& key : Keys(head, j)) sum += std::exp(Score(head, key));
      masses.push_back(std::log(sum));
    }
    return masses;
  }
  static double LogSum(const std::vector<double>& masses) {
    double sum = 0.0;
    for (const double mass : masses) sum += std::exp(mass);
    return std::log(sum);
  }
};

TEST_F(RivalsTest, AgreeWithPlainLoopsOverTheKeys) {
  Score({Way(std::make_shared<Judge>(), {})});
}

// H2O by key or by block as it is published, one key after the other, in double.
class PlainH2o final : public Rival {
 public:
  PlainH2o(double window, double share, bool by_key)
      : window_{window}, share_(share), by_key_(by_key) {}
  KeptParts needs() const override { return {.keys = true, .values = by_key_}; }
  bool by_key() const override { return by_key_; }
  int64_t IndexBytes(const KvGeometry&, int32_t) const override { return 0; }
  bool remembers() const override { return true; }

  void Admit(const RivalHead& head, std::span<uint8_t> admitted) const override {
    if (by_key_) return AdmitLastKeys(window_, admitted);
    AdmitWindow(window_, head.blocks, admitted);
  }
  void Watch(std::span<const RivalHead> rows, RivalMemory& memory) const override {
    for (const RivalHead& row : rows) Remember(row, {}, memory);
  }
  void AddWatched(const RivalMemory& later, RivalMemory& memory) const override {
    memory.resize(std::max(memory.size(), later.size()));
    for (size_t i = 0; i < later.size(); ++i) memory[i] += later[i];
  }
  void AdmitAndRemember(const RivalHead& head, std::span<uint8_t> admitted,
                        RivalMemory& memory) const override {
    Admit(head, admitted);
    memory.resize(std::max(memory.size(), admitted.size()));
    std::vector<size_t> open;
    size_t outside = 0;
    for (size_t i = 0; i < admitted.size(); ++i) {
      if (admitted[i] != 0) continue;
      ++outside;
      if (memory[i] >= 0.0) open.push_back(i);
    }
    std::ranges::stable_sort(open, std::greater<>(), [&](size_t i) { return memory[i]; });
    const double budget = std::ceil(share_ * static_cast<double>(outside));
    for (size_t i = 0; i < open.size(); ++i) {
      const bool kept = static_cast<double>(i) < budget;
      admitted[open[i]] = kept ? 1 : 0;
      if (!kept) memory[open[i]] = -1.0;
    }
    Remember(head, admitted, memory);
  }

 private:
  void Remember(const RivalHead& head, std::span<const uint8_t> attended,
                RivalMemory& memory) const {
    const int32_t b = head.blocks.block_size();
    std::vector<double> weights(static_cast<size_t>(head.blocks.num_keys));
    const auto unit = [&](size_t t) { return by_key_ ? t : t / static_cast<size_t>(b); };
    double sum = 0.0;
    for (size_t t = 0; t < weights.size(); ++t) {
      if (unit(t) < attended.size() && attended[unit(t)] == 0) continue;
      const KeyColumns keys = head.blocks.keys(static_cast<int32_t>(t) / b);
      double score = 0.0;
      for (size_t i = 0; i < head.q.size(); ++i) {
        score += static_cast<double>(head.q[i]) *
                 keys.values[i * keys.stride + t % static_cast<size_t>(b)];
      }
      weights[t] = std::exp(head.softmax_scale * score);
      sum += weights[t];
    }
    memory.resize(std::max(memory.size(), unit(weights.size() - 1) + 1));
    for (size_t t = 0; t < weights.size(); ++t) {
      if (memory[unit(t)] >= 0.0) memory[unit(t)] += weights[t] / sum;
    }
  }

  WindowLength window_;
  double share_;
  bool by_key_;
};

TEST_F(RivalsTest, H2oKeepsWhatAPlainLoopKeeps) {
  for (const bool by_key : {true, false}) {
    for (const double share : {0.1, 0.4}) {
      const AttentionOptions options = {.pinned_blocks = 0, .sink_blocks = by_key ? 0 : 1};
      const auto scores =
          Score({Way(MakeH2o({.window = {24.0}, .share = share, .by_key = by_key}), options),
                 Way(std::make_shared<PlainH2o>(24.0, share, by_key), options)});
      EXPECT_LT(scores[0].head_density, 0.8) << by_key << " " << share;
      EXPECT_DOUBLE_EQ(scores[0].head_density, scores[1].head_density) << by_key << " " << share;
      // Sums that nearly tie may fall either way.
      EXPECT_NEAR(scores[0].union_density, scores[1].union_density, 4e-3);
      EXPECT_NEAR(scores[0].loss.mean, scores[1].loss.mean, 1e-3) << by_key << " " << share;
    }
  }
}

// Counts the rows of prompts.
class PromptRows : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void Plan(const BatchView& batch) override {
    for (const SequenceRows& rows : batch.sequences) {
      count += rows.kind == RowKind::kPrefill ? rows.num_rows : 0;
    }
    ForwardingBackend::Plan(batch);
  }
  int64_t count = 0;
};

// A prompt that ends within a block; windows that take turns.
TEST_F(RivalsTest, WaysGoOnFromOnePromptAsEachDoesAlone) {
  windows_.push_back(windows_.front());
  std::ranges::reverse(windows_.back());
  const auto rows =
      std::make_shared<PromptRows>(std::shared_ptr<Backend>(*MakeBackend({.name = "reference"})));
  const auto first = std::exchange(backend_, std::make_shared<RivalBackend>(rows, 2));
  runner_ = *SequenceRunner::Create(checkpoint_, *backend_,
                                    {.geometry = runner_->geometry(), .max_context = kContext});
  const AttentionOptions few = {.pinned_blocks = 1};
  const std::vector<EvaluatedAttention> ways = {
      Way(nullptr, few),
      Way(MakeH2o({.window = {16.0}, .share = 0.3}), few),
      Way(MakeH2o({.window = {32.0}, .share = 0.1}), few),
      Way(MakeH2o({.window = {16.0}, .share = 0.3, .by_key = false}), few),
      Way(nullptr, {.pinned_blocks = 3}),
      Way(MakeQuest(0.3), few),
      Way(MakeTopK(0.3), few),
      Way(MakeBigBird({0.2}, 16), few)};
  const auto together = Score(ways);
  EXPECT_EQ(rows->count, 2 * 2 * kPrefill) << "of rivals, and of others";
  for (size_t i = 0; i < ways.size(); ++i) {
    const AttentionScore alone = Score({ways[i]}).front();
    EXPECT_EQ(together[i].losses, alone.losses) << i;
    EXPECT_DOUBLE_EQ(together[i].head_density, alone.head_density) << i;
    EXPECT_DOUBLE_EQ(together[i].union_density, alone.union_density) << i;
    EXPECT_GT(together[i].tokens_per_second, 0.0);
  }
}

// Notes which rows of the first layer and head it watches, and chooses all blocks.
class Watcher final : public Rival {
 public:
  KeptParts needs() const override { return {}; }
  int64_t IndexBytes(const KvGeometry&, int32_t) const override { return 0; }
  void Admit(const RivalHead&, std::span<uint8_t> admitted) const override {
    std::ranges::fill(admitted, uint8_t{1});
  }
  bool remembers() const override { return true; }
  void Watch(std::span<const RivalHead> rows, RivalMemory& memory) const override {
    if (rows.front().layer == 0 && rows.front().query_head == 0) {
      for (const RivalHead& row : rows) memory.push_back(row.blocks.num_keys - 1);
    }
  }
  void AddWatched(const RivalMemory& later, RivalMemory& memory) const override {
    memory.insert(memory.end(), later.begin(), later.end());
  }
  void AdmitAndRemember(const RivalHead& head, std::span<uint8_t> admitted,
                        RivalMemory& memory) const override {
    Admit(head, admitted);
    if (head.layer == 0 && head.query_head == 0) watched = memory;
    memory.push_back(-1.0);
  }
  mutable RivalMemory watched;
};

TEST_F(RivalsTest, ThoseThatRememberGoOnFromTheRowsThatTheyWatched) {
  const auto watcher = std::make_shared<Watcher>();
  backend_->Prepare({watcher, nullptr}, /*stride=*/30);
  const std::span<const int32_t> tokens = windows_[0];
  ASSERT_EQ(runner_->Begin({}), absl::OkStatus());
  ASSERT_EQ(runner_->RunPrompt(tokens.first(kPrefill)), absl::OkStatus());
  runner_->Mark();
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_EQ(runner_->Return({}), absl::OkStatus());
    EXPECT_EQ(runner_->position(), kPrefill);
    backend_->Choose(watcher);
    ASSERT_EQ(runner_->Run({.tokens = tokens.subspan(kPrefill, 1)}), absl::OkStatus());
    EXPECT_THAT(watcher->watched, ElementsAre(0, 30, 60, 90)) << turn;
  }
}

}  // namespace
}  // namespace eta
