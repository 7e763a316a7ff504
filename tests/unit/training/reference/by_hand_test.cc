// Ops of Native Sparse Attention, on the reference and the CPU, on cases whose results are known by
// hand.

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/training/attention_case.h"
#include "tests/testing/training/native_sparse_case.h"
#include "training/cpu/cpu_backend.h"
#include "training/reference/reference_backend.h"

namespace eta::training {
namespace {

using testing::CompressedCase;
using testing::Harness;
using testing::Results;

void OnBoth(const std::function<void(TrainingBackend&)>& run) {
  for (const auto& backend : {cpu::MakeBackend(2), reference::MakeBackend()}) {
    SCOPED_TRACE(backend->name());
    run(*backend);
    EXPECT_TRUE(backend->Finish().ok());
  }
}

// One sequence, one KV head, heads of one number: a score is q k.
CompressedCase PlainCase(int32_t length, const std::vector<double>& q_of_heads) {
  CompressedCase c;
  c.shape = {1, length, static_cast<int32_t>(q_of_heads.size()), 1, 1, 1.0f};
  for (int32_t t = 0; t < length; ++t) c.q.insert(c.q.end(), q_of_heads.begin(), q_of_heads.end());
  c.k.assign(static_cast<size_t>(CompressedCount(length)), 0.0);
  for (size_t i = 0; i < c.k.size(); ++i) c.v.push_back(static_cast<double>(i) + 1.0);
  c.grad_out.assign(c.q.size(), 1.0);
  return c;
}

// The blocks of one row, one sequence and KV head.
std::vector<int32_t> BlocksOf(const std::vector<uint64_t>& selected, int32_t length, int32_t t) {
  const int32_t n = KeySelection::Blocks(length);
  std::vector<int32_t> blocks;
  for (int32_t j = 0; j < n; ++j) {
    const uint64_t queries = selected[static_cast<size_t>(j * n + t / kRegulariserBlock)];
    if ((queries >> t % kRegulariserBlock & 1) != 0) blocks.push_back(j);
  }
  return blocks;
}

std::vector<uint64_t> Selected(const CompressedCase& c, TrainingBackend& backend) {
  Harness harness(backend);
  std::vector<uint64_t> selected;
  RunCompressedAttention(c, harness, false, &selected);
  return selected;
}

constexpr int32_t kTwentyBlocks = 20 * kRegulariserBlock;
using Blocks = std::vector<int32_t>;

TEST(ByHand, TheMostImportantBlocksAreSelected) {
  // Head 0 weighs the window in the middle of block j by e^(0.1 (7 j mod 17)), and head 1 all
  // windows alike. Of blocks 1 to 17 those of the four smallest are left out.
  CompressedCase c = PlainCase(kTwentyBlocks, {1.0, 0.0});
  c.k.assign(c.k.size(), -50.0);
  for (size_t j = 0; j < 20; ++j) c.k[4 * j + 1] = 0.1 * static_cast<double>(7 * j % 17);
  OnBoth([&](TrainingBackend& backend) {
    const std::vector<uint64_t> selected = Selected(c, backend);
    EXPECT_EQ(BlocksOf(selected, kTwentyBlocks, kTwentyBlocks - 1),
              (Blocks{0, 1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 16, 18, 19}));
    EXPECT_EQ(BlocksOf(selected, kTwentyBlocks, 1000),
              (Blocks{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
    EXPECT_EQ(BlocksOf(selected, kTwentyBlocks, 130), (Blocks{0, 1, 2}));
    EXPECT_EQ(BlocksOf(selected, kTwentyBlocks, 64), (Blocks{0, 1}));
    EXPECT_EQ(BlocksOf(selected, kTwentyBlocks, 63), (Blocks{0}));
    EXPECT_LE(ChoiceError(c, selected), 1e-5);
  });
}

TEST(ByHand, AWindowCountsForBothBlocksThatItLiesIn) {
  // Window 67 is half in block 16 and half in block 17. All other blocks are equal: the earlier.
  CompressedCase c = PlainCase(kTwentyBlocks, {1.0, 1.0, 1.0});
  c.k.assign(c.k.size(), -20.0);
  c.k[67] = 0.0;
  OnBoth([&](TrainingBackend& backend) {
    const std::vector<uint64_t> selected = Selected(c, backend);
    EXPECT_EQ(BlocksOf(selected, kTwentyBlocks, kTwentyBlocks - 1),
              (Blocks{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19}));
    // The last row of block 18 has block 17 beside it in any case.
    EXPECT_EQ(BlocksOf(selected, kTwentyBlocks, 19 * kRegulariserBlock - 1),
              (Blocks{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 17, 18}));
  });
}

TEST(ByHand, RowsSeeWindowsThatHaveEnded) {
  constexpr int32_t kLength = 70;  // windows end at rows 31, 47 and 63
  const CompressedCase c = PlainCase(kLength, {0.0});
  OnBoth([&](TrainingBackend& backend) {
    Harness harness(backend);
    const Results results = RunCompressedAttention(c, harness);
    for (size_t t = 0; t < kLength; ++t) {
      const double seen = t < 31 ? 0.0 : t < 47 ? 1.0 : t < 63 ? 2.0 : 3.0;
      // The mean of 1 .. seen.
      EXPECT_NEAR(results[0].values[t], seen == 0.0 ? 0.0 : (seen + 1.0) / 2.0, 1e-6) << t;
      EXPECT_NEAR(results[1].values[t], seen == 0.0 ? 0.0 : std::log(seen), 1e-6) << t;
    }
  });
}

TEST(ByHand, LengthsBelowAWindowHaveNoCompressedKeys) {
  for (const int32_t length : {1, 20, 31}) {
    const CompressedCase c = PlainCase(length, {1.0, 2.0});
    OnBoth([&](TrainingBackend& backend) {
      Harness harness(backend);
      std::vector<uint64_t> selected;
      for (const testing::Result& result : RunCompressedAttention(c, harness, true, &selected)) {
        const bool of_rows = result.name != "dk" && result.name != "dv";
        EXPECT_EQ(result.values, std::vector<double>(of_rows ? c.q.size() : 0, 0.0)) << result.name;
      }
      for (int32_t t = 0; t < length; ++t) EXPECT_EQ(BlocksOf(selected, length, t), Blocks{0});
      const testing::WindowsCase windows = {
          1, length, 1, 2, std::vector<double>(static_cast<size_t>(2 * length)), {}};
      EXPECT_TRUE(RunGatherWindows(windows, harness)[0].values.empty());
    });
  }
}

TEST(ByHand, RowsAttendToTheKeysThatAreChosen) {
  constexpr int32_t kLength = 150;
  constexpr int32_t kWindow = 40;
  testing::AttentionCase c;
  c.shape = {1, kLength, 2, 2, 1, 1.0f};
  c.q.assign(2 * kLength, 0.0);
  c.k.assign(2 * kLength, 1.0);
  for (int32_t i = 0; i < 2 * kLength; ++i) c.v.push_back(std::sin(i));
  c.grad_out.assign(2 * kLength, 1.0);
  testing::Numbers numbers(3);
  c.blocks = testing::RandomBlocks(numbers, c.shape);
  for (const int32_t window : {0, kWindow}) {
    c.window = window;
    OnBoth([&](TrainingBackend& backend) {
      Harness harness(backend);
      const Results results = RunAttention(c, harness, false);
      for (int32_t h = 0; h < 2; ++h) {
        for (int32_t t = 0; t < kLength; ++t) {
          double sum = 0.0;
          double count = 0.0;
          for (int32_t s = window == 0 ? 0 : std::max(0, t - kWindow + 1); s <= t; ++s) {
            const auto word = static_cast<size_t>((h * 3 + s / 64) * 3 + t / 64);
            if ((c.blocks[word] >> t % 64 & 1) == 0) continue;
            sum += c.v[static_cast<size_t>(2 * s + h)];
            count += 1.0;
          }
          EXPECT_NEAR(results[0].values[static_cast<size_t>(2 * t + h)], sum / count, 1e-5) << t;
          EXPECT_NEAR(results[1].values[static_cast<size_t>(h * kLength + t)], std::log(count),
                      1e-5)
              << t;
        }
      }
    });
  }
}

TEST(ByHand, WindowsLieSideBySide) {
  testing::WindowsCase c = {2, 90, 2, 3, {}, {}};
  testing::Numbers numbers(1);
  c.x = numbers.Normal(2 * 90 * 2 * 3);
  OnBoth([&](TrainingBackend& backend) {
    Harness harness(backend);
    const std::vector<double> out = RunGatherWindows(c, harness, false)[0].values;
    ASSERT_EQ(out.size(), 2u * 4 * 2 * 32 * 3);
    size_t at = 0;
    for (int64_t b = 0; b < c.sequences; ++b) {
      for (int64_t i = 0; i < 4; ++i) {
        for (int64_t h = 0; h < c.heads; ++h) {
          for (int64_t e = 0; e < 32; ++e) {
            for (int64_t x = 0; x < 3; ++x) {
              const int64_t row = b * c.length + 16 * i + e;
              ASSERT_EQ(out[at++], c.x[static_cast<size_t>((row * c.heads + h) * 3 + x)]);
            }
          }
        }
      }
    }
    EXPECT_EQ(at, out.size());
  });
}

TEST(ByHand, AKeyTurnsByItsPlace) {
  constexpr int64_t kKeys = 5;
  testing::Numbers numbers(2);
  const std::vector<double> keys = numbers.Normal(kKeys * 4);
  std::vector<double> among(80 * 4, 0.0);  // the same keys at rows 15, 31 ...
  for (size_t i = 0; i < keys.size(); ++i) among[(15 + i / 4 * 16) * 4 + i % 4] = keys[i];
  OnBoth([&](TrainingBackend& backend) {
    Harness harness(backend);
    RopeParams placed{};
    placed.k = harness.Activations(keys, kKeys, 4);
    placed.head_dim = 4;
    placed.length = kKeys;
    placed.theta = 1000.0;
    placed.first = 15;
    placed.stride = 16;
    backend.Rope(placed);
    RopeParams plain = placed;
    plain.k = harness.Activations(among, 80, 4);
    plain.q = harness.Activations(among, 80, 4);
    plain.length = 80;
    plain.first = 0;
    plain.stride = 1;
    backend.Rope(plain);
    const std::vector<double> got = harness.Read(placed.k);
    const std::vector<double> expected = harness.Read(plain.k);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i], expected[(15 + i / 4 * 16) * 4 + i % 4]) << i;
    }
  });
}

TEST(ByHand, AHitIsTheFirstOfTheLargestLogits) {
  // Logits are 1, 3, 3, 2 times `hidden`.
  const std::vector<int32_t> targets = {0, 1, 2, 3, -1, 0, 3};
  const std::vector<float> weights(targets.size(), 1.0f);
  OnBoth([&](TrainingBackend& backend) {
    for (const bool teaches : {false, true}) {
      Harness harness(backend);
      HeadLossParams params{};
      params.hidden = harness.Activations(std::vector<double>{1, 1, 1, 1, 1, -1, 0}, 7, 1);
      params.head = harness.Activations(std::vector<double>{1, 3, 3, 2}, 4, 1);
      params.targets = targets;
      params.ce_weights = weights;
      params.cross_entropy = harness.Floats(7);
      params.hit = harness.Floats(7);
      if (teaches) {
        params.teacher_hidden = params.hidden;
        params.teacher_head = harness.Activations(std::vector<double>{4, 3, 2, 1}, 4, 1);
        params.kl_weights = weights;
        params.divergence = harness.Floats(7);
      }
      backend.HeadLoss(params);
      EXPECT_EQ(harness.Read(params.hit, 7), (std::vector<double>{0, 1, 0, 0, 0, 1, 0}));
    }
  });
}

}  // namespace
}  // namespace eta::training
