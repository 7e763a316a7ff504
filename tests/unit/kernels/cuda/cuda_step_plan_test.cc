// How the CUDA backend lays out a step; needs no device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/decode/decode_cluster.h"
#include "kernels/cuda/host/step_plan.h"

namespace eta::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// A packed batch, read back as the device would.
struct Step {
  explicit Step(const BatchView& batch, int32_t block_size)
      : bytes(StepBytes(batch), std::byte{0xFF}),
        packed(PackStep(batch, bytes.data())),
        view(StepLayout(packed.padded_rows, packed.num_tables).View(bytes.data())) {
    PackScreening(packed.padded_rows, block_size, bytes.data());
  }

  std::vector<std::byte> bytes;
  PackedStep packed;
  StepView view;
};

TEST(PaddedRowsTest, HoldsTheRowsAndIsItsOwnPaddedSize) {
  int64_t last = 0;
  for (int64_t rows = 0; rows <= 5000; ++rows) {
    const int64_t padded = PaddedRows(rows);
    EXPECT_GE(padded, rows);
    EXPECT_GE(padded, last);
    EXPECT_EQ(PaddedRows(padded), padded);
    EXPECT_LT(padded - rows, rows <= 1024 ? 64 : 256);
    last = padded;
  }
  EXPECT_EQ(PaddedRows(0), 0);
  EXPECT_EQ(PaddedRows(5), 8);
  EXPECT_EQ(PaddedRows(129), 192);
  EXPECT_EQ(PaddedRows(1025), 1280);
}

class StepPlanTest : public ::testing::Test {
 protected:
  // Rows: prefill 0..2, decode 3 (frozen), decode 4 and 5 (frozen alike), decode 6 (admits all).
  StepPlanTest() {
    sequences_ = {{.row_begin = 0,
                   .num_rows = 3,
                   .position = 10,
                   .kind = RowKind::kPrefill,
                   .rope_theta = 1e4f,
                   .calibrate = true,
                   .block_table = tables_[0]},
                  {.row_begin = 3,
                   .num_rows = 1,
                   .position = 16 * 64 - 1,
                   .attention = {.offset = 0.5f,
                                 .z = 2.0f,
                                 .pinned_blocks = 3,
                                 .rescue_chunk = 7,
                                 .uniform_floor = false},
                   .frozen_thresholds = profile_.data(),
                   .block_table = tables_[1]},
                  {.row_begin = 4,
                   .num_rows = 2,
                   .position = 64 * 16 + 14,
                   .frozen_thresholds = profile_.data(),
                   .calibrate = true,  // which only prompts do
                   .block_table = tables_[2]},
                  {.row_begin = 6,
                   .num_rows = 1,
                   .position = 999,
                   .attention = {.admit_all = true},
                   .block_table = tables_[3]}};
  }

  BatchView batch() const { return {tokens_, sequences_}; }

  std::vector<int32_t> tokens_ = {70, 71, 72, 73, 74, 75, 76};
  std::vector<float> profile_ = {1.0f};
  std::vector<std::vector<int32_t>> tables_ = {{5}, {9, 8, 7}, {4, 3}, {1, 2}};
  std::vector<SequenceRows> sequences_;
};

TEST_F(StepPlanTest, RowsSayWhatTheirSequencesSay) {
  const Step step(batch(), 16);
  ASSERT_EQ(step.packed.num_rows, 7);
  ASSERT_EQ(step.view.num_rows, 8);
  EXPECT_EQ(step.view.counts->num_rows, 7);
  EXPECT_EQ(step.view.counts->num_sequences, 4);
  const std::span rows(step.view.rows, 8);
  for (int32_t r = 0; r < 7; ++r) {
    EXPECT_EQ(rows[r].token, 70 + r);
    EXPECT_EQ(rows[r].role, r < 3 ? RowRole::kPrefill : RowRole::kDecode);
  }
  EXPECT_EQ(rows[7].role, RowRole::kPadding);
  EXPECT_EQ(rows[7].token, 0);
  EXPECT_EQ(rows[2].position, 12);
  EXPECT_EQ(rows[2].sequence, 0);
  EXPECT_EQ(rows[2].frozen, -1);
  EXPECT_EQ(rows[2].head_z, -1);
  EXPECT_EQ(rows[2].rope_theta, 1e4f);
  EXPECT_EQ(rows[3].attention.offset, 0.5f);
  EXPECT_EQ(rows[3].attention.z, 2.0f);
  EXPECT_EQ(rows[3].attention.pinned_blocks, 3);
  EXPECT_EQ(rows[3].attention.rescue_chunk, 7);
  EXPECT_FALSE(rows[3].attention.uniform_floor);
  EXPECT_EQ(rows[5].position, 64 * 16 + 15);
  EXPECT_EQ(rows[5].sequence, 2);
  EXPECT_TRUE(rows[5].attention.uniform_floor);
  EXPECT_FALSE(rows[5].attention.admit_all);
  EXPECT_TRUE(rows[6].attention.admit_all);
}

TEST_F(StepPlanTest, KnowsWhetherAllDecodeRowsReadEverything) {
  EXPECT_FALSE(Step(batch(), 16).packed.reads_all);
  for (SequenceRows& sequence : sequences_) {
    sequence.attention.admit_all = sequence.kind == RowKind::kDecode;
  }
  EXPECT_TRUE(Step(batch(), 16).packed.reads_all);
  sequences_[1].attention.relative = true;
  EXPECT_FALSE(Step(batch(), 16).packed.reads_all);
}

TEST_F(StepPlanTest, KnowsWhetherListsAreEven) {
  EXPECT_TRUE(Step(batch(), 16).packed.even);
  sequences_[1].position = 20000;  // far above twice the mean
  EXPECT_FALSE(Step(batch(), 16).packed.even);
  sequences_[2].position = 20000;
  sequences_[3].position = 20000;
  EXPECT_TRUE(Step(batch(), 16).packed.even);
  sequences_[3].position = 40000;  // too long
  EXPECT_FALSE(Step(batch(), 16).packed.even);
  EXPECT_EQ(Step(batch(), 16).packed.longest, 40000 + sequences_[3].num_rows);
}

TEST(FewAndLongLists, AreThoseThatClustersReadWithAPartOfTheCard) {
  constexpr int64_t kLong = int64_t{32} << 20;
  EXPECT_TRUE(AreFewAndLong(132, 1, kLong));
  EXPECT_TRUE(AreFewAndLong(132, 4, kLong));
  EXPECT_FALSE(AreFewAndLong(132, 5, kLong));
  EXPECT_FALSE(AreFewAndLong(132, 1, kLong / 4));
}

TEST_F(StepPlanTest, TablesStandOneBehindTheOther) {
  const Step step(batch(), 16);
  EXPECT_THAT(std::span(step.view.tables, 8), ElementsAre(5, 9, 8, 7, 4, 3, 1, 2));
  EXPECT_EQ(step.view.rows[0].table_begin, 0);
  EXPECT_EQ(step.view.rows[3].table_begin, 1);
  EXPECT_EQ(step.view.rows[5].table_begin, 4);
  EXPECT_EQ(step.view.sequences[3].table_begin, 6);
  EXPECT_EQ(step.view.sequences[2].row_begin, 4);
  EXPECT_EQ(step.view.sequences[2].num_rows, 2);
  EXPECT_EQ(step.view.sequences[2].position, 64 * 16 + 14);
  EXPECT_EQ(step.view.sequences[0].role, RowRole::kPrefill);
  const auto* end = reinterpret_cast<const std::byte*>(step.view.tables + 8);
  EXPECT_EQ(end, step.bytes.data() + step.bytes.size());
}

TEST_F(StepPlanTest, TemperedKeysFollowTheTablesUpToTheLastOne) {
  const std::vector<uint64_t> prompt = {0x8000'0001'0000'0002, 0, 0};
  const std::vector<uint64_t> none(3);
  const std::vector<uint64_t> late = {0, uint64_t{1} << 40};
  sequences_[0].tempered = prompt;
  sequences_[1].tempered = none;
  sequences_[2].tempered = late;
  const Step step(batch(), 16);
  const auto expect = [&](const TemperedKeys& keys, int32_t begin, int32_t words) {
    EXPECT_EQ(keys.words, words);
    EXPECT_EQ(words != 0 ? keys.begin : begin, begin);
  };
  expect(step.view.sequences[0].tempered, 8, 2);
  expect(step.view.rows[2].tempered, 8, 2);
  expect(step.view.rows[3].tempered, 0, 0);
  expect(step.view.rows[5].tempered, 10, 4);
  expect(step.view.rows[6].tempered, 0, 0);
  EXPECT_THAT(std::span(step.view.tables, 8), ElementsAre(5, 9, 8, 7, 4, 3, 1, 2));
  const auto* words = reinterpret_cast<const uint32_t*>(step.view.tables + 8);
  EXPECT_THAT(std::span(words, 6), ElementsAre(2, 0x8000'0001, 0, 0, 0, 1u << 8));
  EXPECT_EQ(reinterpret_cast<const std::byte*>(words + 6), step.bytes.data() + step.bytes.size());
}

TEST_F(StepPlanTest, RowsWithRelativeThresholdsScreenEvenIfTheyAdmitAll) {
  EXPECT_FALSE(Step(batch(), 16).packed.relative);
  sequences_[3].attention.relative = true;
  sequences_[3].attention.relative_c = -4.6f;
  sequences_[3].attention.sink_blocks = 1;
  sequences_[3].attention.shared_reads = true;
  const Step step(batch(), 16);
  EXPECT_TRUE(step.packed.relative);
  const StepRow& row = step.view.rows[6];
  EXPECT_TRUE(row.attention.relative);
  EXPECT_EQ(row.attention.relative_c, -4.6f);
  EXPECT_EQ(row.attention.sink_blocks, 1);
  EXPECT_TRUE(row.attention.shared_reads);
  EXPECT_FALSE(step.view.rows[5].attention.relative);
  EXPECT_EQ(step.view.rows[5].attention.sink_blocks, 0);
  // Row 6 has 62 full blocks.
  EXPECT_THAT(std::span(step.view.screen_begin, 9), ElementsAre(0, 0, 0, 0, 1, 2, 4, 5, 5));
}

TEST_F(StepPlanTest, TellsRowsOfSparsePrefill) {
  EXPECT_TRUE(Step(batch(), 16).packed.sparse_rows.empty());
  for (SequenceRows& sequence : sequences_) sequence.attention.sparse_prefill = true;
  EXPECT_TRUE(Step(batch(), 16).packed.sparse_rows.empty()) << "the prompt calibrates";
  sequences_[0].calibrate = false;
  sequences_[0].attention.relative = true;
  const Step step(batch(), 16);
  ASSERT_EQ(step.packed.sparse_rows.size(), 1U);
  EXPECT_EQ(step.packed.sparse_rows[0].begin, 0);
  EXPECT_EQ(step.packed.sparse_rows[0].count, 3);
  EXPECT_TRUE(step.packed.sparse_relative);
  EXPECT_FALSE(step.packed.relative);
  EXPECT_EQ(step.view.sequences[0].sparse, 1);
  EXPECT_EQ(step.view.sequences[1].sparse, 0);
}

TEST_F(StepPlanTest, OneProfileIsSentOnce) {
  const Step step(batch(), 16);
  EXPECT_THAT(step.packed.profiles, ElementsAre(StepProfile{profile_.data(), nullptr}));
  EXPECT_EQ(step.view.rows[3].frozen, 0);
  EXPECT_EQ(step.view.rows[4].frozen, 0);
  EXPECT_EQ(step.view.rows[4].head_z, -1);
  EXPECT_EQ(step.view.rows[6].frozen, -1);
}

TEST_F(StepPlanTest, ThresholdsAndZOfAProfileShareAnIndex) {
  const std::vector<float> z = {2.0f};
  sequences_[1].head_z = z.data();
  sequences_[3].head_z = z.data();
  const Step step(batch(), 16);
  EXPECT_THAT(step.packed.profiles,
              ElementsAre(StepProfile{profile_.data(), z.data()},
                          StepProfile{profile_.data(), nullptr}, StepProfile{nullptr, z.data()}));
  const std::span rows(step.view.rows, 7);
  EXPECT_EQ(rows[3].frozen, 0);
  EXPECT_EQ(rows[3].head_z, 0);
  EXPECT_EQ(rows[5].frozen, 1);
  EXPECT_EQ(rows[5].head_z, -1);
  EXPECT_EQ(rows[6].frozen, -1);
  EXPECT_EQ(rows[6].head_z, 2);
}

TEST_F(StepPlanTest, OnlyPromptsCalibrate) {
  Step step(batch(), 16);
  EXPECT_TRUE(step.packed.calibrates);
  EXPECT_EQ(step.view.sequences[0].calibrate, 1);
  EXPECT_EQ(step.view.sequences[2].calibrate, 0);
  sequences_[0].calibrate = false;
  EXPECT_FALSE(Step(batch(), 16).packed.calibrates);
}

TEST_F(StepPlanTest, ScreeningIsCutIntoPiecesOfFullBlocksOfDecodeRows) {
  // Row 3 has 64 full blocks of 16, row 4 has 64 too (its tail is not full), row 5 has 65.
  Step step(batch(), 16);
  EXPECT_THAT(std::span(step.view.screen_begin, 9), ElementsAre(0, 0, 0, 0, 1, 2, 4, 4, 4));
  EXPECT_EQ(step.view.counts->screen_units, 4);
  // The same step, for other blocks.
  PackScreening(step.packed.padded_rows, 1, step.bytes.data());
  EXPECT_THAT(std::span(step.view.screen_begin, 9), ElementsAre(0, 0, 0, 0, 16, 33, 50, 50, 50));
}

TEST_F(StepPlanTest, DecodeRowsAreThoseWhoseCountsComeBack) {
  const Step step(batch(), 16);
  EXPECT_TRUE(step.packed.has_prefill);
  ASSERT_EQ(step.packed.decode_rows.size(), 3u);
  EXPECT_EQ(step.packed.decode_rows[1].begin, 4);
  EXPECT_EQ(step.packed.decode_rows[1].count, 2);
}

TEST_F(StepPlanTest, SingleRowsAreOneDecodeRowOfEverySequence) {
  EXPECT_FALSE(Step(batch(), 16).packed.single_rows);
  const SequenceRows first = {.row_begin = 0, .num_rows = 1, .block_table = tables_[0]};
  const SequenceRows one = {.row_begin = 1, .num_rows = 1, .block_table = tables_[1]};
  SequenceRows two = one;
  two.num_rows = 2;
  SequenceRows prefill = one;
  prefill.kind = RowKind::kPrefill;
  const auto single_rows = [&](const SequenceRows& second) {
    const std::vector<SequenceRows> sequences = {first, second};
    const auto num_rows = static_cast<size_t>(1 + second.num_rows);
    return Step({std::span(tokens_).first(num_rows), sequences}, 16).packed.single_rows;
  };
  EXPECT_TRUE(single_rows(one));
  EXPECT_FALSE(single_rows(two));
  EXPECT_FALSE(single_rows(prefill));
}

std::vector<std::pair<int32_t, int32_t>> BundlesOf(const Step& step) {
  const StepLayout layout(step.packed.padded_rows, step.packed.num_tables);
  const auto* bundles = reinterpret_cast<const RowBundle*>(step.bytes.data() + layout.bundles());
  std::vector<std::pair<int32_t, int32_t>> found;
  for (int32_t i = 0; i < step.packed.padded_rows; ++i) {
    if (bundles[i].num_rows > 0) found.emplace_back(bundles[i].row_begin, bundles[i].num_rows);
  }
  return found;
}

TEST_F(StepPlanTest, RowsOfASequenceAreBundled) {
  const std::vector<int32_t> tokens(24);
  const std::vector<int32_t> table(10);
  const auto rows = [&](int32_t row_begin, int32_t num_rows, RowKind kind = RowKind::kDecode) {
    return SequenceRows{
        .row_begin = row_begin, .num_rows = num_rows, .kind = kind, .block_table = table};
  };
  const std::vector<SequenceRows> sequences = {rows(0, 3), rows(3, 2, RowKind::kPrefill),
                                               rows(5, 1), rows(6, 10)};
  const Step step({std::span(tokens).first(16), sequences}, 16);
  EXPECT_THAT(BundlesOf(step), ElementsAre(Pair(0, 3), Pair(5, 1), Pair(6, 8), Pair(14, 2)));
  EXPECT_EQ(step.packed.bundles, (Bundles{4, 8}));
  EXPECT_FALSE(step.packed.few_rows);

  const std::vector<SequenceRows> few = {rows(0, 1), rows(1, 3)};
  const Step other({std::span(tokens).first(4), few}, 16);
  EXPECT_EQ(other.packed.bundles, (Bundles{2, 4}));
  EXPECT_TRUE(other.packed.few_rows);
  EXPECT_NE(step.packed.shape(), other.packed.shape());

  const std::vector<SequenceRows> alone = {rows(0, 1), rows(1, 1)};
  EXPECT_EQ(Step({std::span(tokens).first(2), alone}, 16).packed.bundles, Bundles());
}

TEST(StepLayoutTest, AddressesDependOnThePaddedSizeAlone) {
  const std::vector<int32_t> tokens(8);
  const std::vector<int32_t> table(1000);
  const SequenceRows five = {.num_rows = 5, .block_table = std::span(table).first(3)};
  const SequenceRows eight = {.num_rows = 8, .block_table = table};
  std::vector<std::byte> bytes(1 << 16);
  const PackedStep a = PackStep({std::span(tokens).first(5), {&five, 1}}, bytes.data());
  const PackedStep b = PackStep({tokens, {&eight, 1}}, bytes.data());
  EXPECT_EQ(a.padded_rows, b.padded_rows);
  EXPECT_EQ(StepLayout(a.padded_rows).tables(), StepLayout(b.padded_rows).tables());
}

TEST_F(StepPlanTest, LayersOfAnotherTableFindTheirs) {
  const std::vector<std::vector<int32_t>> others = {{15}, {-1, 18, 17}, {14, 13}, {-1, 12}};
  std::vector<std::span<const int32_t>> more[4];
  for (size_t s = 0; s < 4; ++s) {
    more[s] = {others[s], tables_[s]};
    sequences_[s].more_tables = more[s];
  }
  const std::vector<uint64_t> words = {0x0000000500000003u};
  sequences_[2].tempered = words;
  const Step step(batch(), 16);
  EXPECT_EQ(step.packed.num_tables, 3);
  const StepLayout layout(step.packed.padded_rows, 3);
  for (int32_t t = 0; t < 3; ++t) {
    const StepView view = layout.View(step.bytes.data(), t);
    for (size_t s = 0; s < 4; ++s) {
      const StepSequence& sequence = view.sequences[s];
      EXPECT_EQ(sequence.row_begin, sequences_[s].row_begin);
      const std::span<const int32_t> want = sequences_[s].table(t);
      for (size_t j = 0; j < want.size(); ++j) {
        EXPECT_EQ(view.tables[sequence.table_begin + static_cast<int32_t>(j)], want[j]);
      }
      for (int32_t i = 0; i < sequence.num_rows; ++i) {
        const StepRow& row = view.rows[sequence.row_begin + i];
        EXPECT_EQ(row.table_begin, sequence.table_begin);
        EXPECT_EQ(row.position, sequences_[s].position + i);
      }
    }
    const StepRow& tempered = view.rows[4];
    EXPECT_EQ(tempered.tempered.words, 2);
    EXPECT_EQ(view.tables[tempered.tempered.begin], 3);
    EXPECT_EQ(view.tables[tempered.tempered.begin + 1], 5);
    EXPECT_EQ(view.rows[7].role, RowRole::kPadding);
  }
}

TEST(StepLayoutTest, AStepWithoutRowsHasArrays) {
  const Step step({}, 64);
  EXPECT_EQ(step.packed.padded_rows, 1);
  EXPECT_EQ(step.view.rows[0].role, RowRole::kPadding);
  EXPECT_EQ(step.view.counts->screen_units, 0);
}

TEST_F(StepPlanTest, TokensThatComeLaterMakeTheSameStep) {
  const std::vector<int32_t> none(tokens_.size(), 0);
  Step early({none, sequences_}, 16);
  SetTokens(tokens_, early.packed.padded_rows, early.bytes.data());
  EXPECT_EQ(early.bytes, Step({tokens_, sequences_}, 16).bytes);
}

}  // namespace
}  // namespace eta::cuda
