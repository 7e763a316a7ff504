// What the judge of two selections lets pass, and that it lets nothing else pass.

#include "tests/testing/kernels/near_ties.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kBlock = 16;
constexpr int32_t kBlocks = 5;

// One head with relative thresholds, five blocks and a tail of 3. All scores are 0, but for those
// of block 2: `spread` and -`spread`, in turns.
AttentionCase Spread(float spread, float relative_c) {
  AttentionCase made;
  made.geometry = {.num_kv_heads = 1,
                   .head_dim = 64,
                   .block_size = kBlock,
                   .dtype = DType::kFloat32,
                   .index = IndexKind::kOutlier,
                   .index_dtype = DType::kInt8};
  made.gate = Gate::kNone;
  SequenceCase sequence;
  sequence.position = kBlocks * kBlock + 2;
  sequence.k = HostTensor(sequence.num_keys(), 64);
  sequence.v = HostTensor(sequence.num_keys(), 64);
  for (int32_t t = 2 * kBlock; t < 3 * kBlock; ++t) {
    sequence.k.row(t)[0] = t % 2 == 0 ? -spread : spread;
  }
  sequence.attention = {.pinned_blocks = 0, .rescue_chunk = 0, .uniform_floor = false};
  sequence.attention.relative = true;
  sequence.attention.relative_c = relative_c;
  made.sequences = {sequence};
  made.q = HostTensor(1, 64);
  made.q.data[0] = 8.0f;  // S = the key's first element
  return made;
}

constexpr float kSpread = 3.8f;

// The query with which block 2 has sd = g, but for rounding.
float QueryAtG(AttentionStep& reference) {
  const float sigma = reference.Record(0, 2, 0).sigma[0];
  return static_cast<float>(8.0 * std::sqrt(2.0 * std::log(kBlock - 1.0) * 2.68)) / sigma;
}

// What block 2 then has above the row: n exp(m + g^2 / 2) and its outlier, over 67 keys whose
// scores are 0, n exp(m) and the outlier.
float ConstantAtG(AttentionStep& reference) {
  const BlockRecord record = reference.Record(0, 2, 0);
  const double scale = QueryAtG(reference) / 8.0;
  const double others = 15.0 * std::exp(scale * record.mu[0]);
  const double outlier = std::exp(scale * record.outlier[0]);
  return static_cast<float>(std::log((15.0 * others + outlier) / (67.0 + others + outlier)));
}

std::string Judge(const AttentionCase& made, AttentionStep& reference, const AttentionResult& got,
                  const AttentionResult& want) {
  return SelectionDifferences(made, reference, got, want) +
         RecallDifferences(made, reference, got, want);
}

// Queries that differ in their last bits stand for two backends.
TEST(NearTies, ABlockAtItsThresholdMayBeAdmittedOrNot) {
  AttentionCase made = Spread(kSpread, 0.0f);
  Device device({"reference"});
  AttentionStep reference(device, made);
  const float query = QueryAtG(reference);
  made.sequences[0].attention.relative_c = ConstantAtG(reference);
  made.q.data[0] = query * (1.0f - 1e-3f);
  const AttentionResult under = reference.Run();
  made.q.data[0] = query * (1.0f + 1e-3f);
  const AttentionResult over = reference.Run();
  EXPECT_EQ(under.tokens_read[0], 3);
  EXPECT_EQ(over.tokens_read[0], kBlock + 3);
  EXPECT_EQ(Judge(made, reference, under, over), "");
  made.q.data[0] = query * (1.0f + 5e-2f);
  EXPECT_THAT(Judge(made, reference, under, over), HasSubstr("block 2"));
  made.sequences[0].attention.relative = false;
  EXPECT_THAT(Judge(made, reference, under, over), HasSubstr("differ"));
}

// The estimated mass has no jump where the deviation is g, so nothing is in doubt there.
TEST(NearTies, ADeviationAtGMakesNoTie) {
  for (const float away : {-0.5f, 0.5f}) {  // it is admitted, it is not
    AttentionCase made = Spread(kSpread, 0.0f);
    Device device({"reference"});
    AttentionStep reference(device, made);
    const float query = QueryAtG(reference);
    made.sequences[0].attention.relative_c = ConstantAtG(reference) + away;
    for (const float side : {-1e-3f, 1e-3f}) {
      made.q.data[0] = query * (1.0f + side);
      const AttentionResult want = reference.Run();
      AttentionResult got = want;
      if (away < 0.0f) {
        std::erase_if(got.selection[0], [](const auto& selected) { return selected.first == 2; });
      } else {
        got.selection[0] = {{2, 1}};
      }
      const int32_t blocks = static_cast<int32_t>(got.selection[0].size());
      got.tokens_attended[0] = got.tokens_read[0] = blocks * kBlock + 3;
      ASSERT_NE(got.selection, want.selection) << away << ", " << side;
      EXPECT_THAT(Judge(made, reference, got, want), HasSubstr("block 2")) << away << ", " << side;
    }
  }
}

TEST(NearTies, OfEqualBlocksAnyMayBeRescued) {
  AttentionCase made = Spread(0.0f, 9.0f);
  made.sequences[0].k.row(4 * kBlock)[0] = -3.0f;
  made.sequences[0].attention.rescue_chunk = 128;
  Device device({"reference"});
  AttentionStep reference(device, made);
  const AttentionResult want = reference.Run();
  ASSERT_EQ(want.selection[0].size(), 1u);
  AttentionResult got = want;
  got.selection[0][0].first = 3;
  EXPECT_EQ(Judge(made, reference, got, want), "");
  got.selection[0][0].first = 4;  // log 15 instead of log 16
  EXPECT_THAT(Judge(made, reference, got, want), HasSubstr("block 4"));
  got = want;
  got.tokens_read[0] += kBlock;
  EXPECT_THAT(Judge(made, reference, got, want), HasSubstr("tokens"));
}

TEST(NearTies, CountsOfRecallMayDifferByTheKeysAtAThreshold) {
  AttentionCase made = Spread(0.0f, 0.0f);
  Device device({"reference"});
  AttentionStep reference(device, made);
  const AttentionResult want = reference.Run();
  AttentionResult got = want;
  got.above[0] += 30;
  EXPECT_THAT(Judge(made, reference, got, want), HasSubstr("recall"));
  // Of 83 keys whose scores are 0 the row holds log 83.
  made.sequences[0].attention.relative_c = -std::log(83.0f);
  EXPECT_EQ(Judge(made, reference, got, want), "");
}

}  // namespace
}  // namespace eta::testing
