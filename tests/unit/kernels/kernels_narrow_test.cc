// The 8-bit cache and the 8-bit index on the reference, which judges the others, against the same
// steps in wider types; and the backend that has neither.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/quantize.h"
#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Every token and KV head as the 8-bit cache stores it.
HostTensor Stored(const HostTensor& tensor, int32_t head_dim) {
  HostTensor stored = tensor;
  const auto d = static_cast<size_t>(head_dim);
  std::vector<uint8_t> codes(d);
  for (size_t at = 0; at < stored.data.size(); at += d) {
    const int32_t exponent = QuantizeRow(std::span(tensor.data).subspan(at, d), codes);
    for (size_t i = 0; i < d; ++i) {
      stored.data[at + i] = std::ldexp(E4M3ToFloat(codes[i]), exponent);
    }
  }
  return stored;
}

class Narrow : public ::testing::TestWithParam<int> {
 protected:
  AttentionCase Case(NarrowTypes narrow) const {
    return RandomCase(static_cast<uint64_t>(GetParam()), narrow);
  }
};

TEST_P(Narrow, AnEightBitCacheIsAFloat32CacheOfWhatItStores) {
  for (const bool index : {false, true}) {
    const AttentionCase narrow = Case({.cache = true, .index = index});
    SCOPED_TRACE(narrow.Describe());
    AttentionCase wide = narrow;
    wide.geometry.dtype = DType::kFloat32;
    for (SequenceCase& sequence : wide.sequences) {
      sequence.k = Stored(sequence.k, wide.geometry.head_dim);
      sequence.v = Stored(sequence.v, wide.geometry.head_dim);
    }
    Device device({"reference"});
    const AttentionResult got = AttentionStep(device, narrow).Run();
    const AttentionResult want = AttentionStep(device, wide).Run();
    EXPECT_EQ(got.selection, want.selection);
    EXPECT_EQ(got.tokens_attended, want.tokens_attended);
    EXPECT_EQ(got.tokens_read, want.tokens_read);
    EXPECT_EQ(got.above, want.above);
    EXPECT_EQ(got.above_admitted, want.above_admitted);
    EXPECT_EQ(got.out.data, want.out.data);
  }
}

TEST_P(Narrow, AnEightBitCacheHardlyMovesTheOutput) {
  AttentionCase wide = Case({.cache = true});
  for (SequenceCase& sequence : wide.sequences) sequence.attention.admit_all = true;
  AttentionCase narrow = wide;
  wide.geometry.dtype = DType::kFloat32;
  Device device({"reference"});
  const AttentionResult got = AttentionStep(device, narrow).Run();
  const AttentionResult want = AttentionStep(device, wide).Run();
  EXPECT_NE(got.out.data, want.out.data);
  EXPECT_LT(RelativeError(got.out.data.data(), want.out.data.data(),
                          static_cast<int64_t>(want.out.data.size())),
            0.2);
}

TEST_P(Narrow, AnEightBitRecordIsTheFloat16OneRoundedAndBoundsMore) {
  AttentionCase narrow = Case({.index = true});
  SCOPED_TRACE(narrow.Describe());
  AttentionCase wide = narrow;
  wide.geometry.index_dtype = DType::kFloat16;
  Device device({"reference"});
  AttentionStep step8(device, narrow);
  AttentionStep step16(device, wide);
  const auto d = static_cast<size_t>(narrow.geometry.head_dim);
  int64_t first_row = 0;
  for (size_t s = 0; s < narrow.sequences.size(); ++s) {
    const SequenceCase& sequence = narrow.sequences[s];
    for (int32_t j = 0; j < sequence.num_keys() / narrow.geometry.block_size; ++j) {
      for (int32_t h = 0; h < narrow.num_query_heads; ++h) {
        const BlockRecord got = step8.Record(s, j, h / narrow.group());
        const BlockRecord from = step16.Record(s, j, h / narrow.group());
        std::vector<int8_t> mu8(d);
        std::vector<uint8_t> sigma8(d);
        const RecordScales scales = QuantizeRecord(from.mu, from.sigma, mu8, sigma8);
        for (size_t i = 0; i < d; ++i) {
          EXPECT_EQ(got.mu[i], scales.mu_scale * static_cast<float>(mu8[i]));
          EXPECT_EQ(got.sigma[i], std::ldexp(E4M3ToFloat(sigma8[i]), scales.sigma_exponent));
        }
        EXPECT_EQ(got.mu_error, scales.mu_error);
        EXPECT_EQ(from.mu_error, 0.0f);
        EXPECT_EQ(got.max_norm, from.max_norm);
        EXPECT_EQ(got.v_total, from.v_total);
        const float* q = narrow.q.row(first_row) + static_cast<int64_t>(h) * d;
        const double bound = Bound(wide, from, q, sequence.attention.z);
        EXPECT_GE(Bound(narrow, got, q, sequence.attention.z), bound - 1e-6 * std::abs(bound));
      }
    }
    first_row += sequence.num_rows;
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, Narrow, ::testing::Range(1, 5));

TEST(NarrowTypesOnTheCpu, AreRefusedByName) {
  Device cpu({"cpu"});
  Device reference({"reference"});
  const KvGeometry good = {.num_kv_heads = 2, .head_dim = 64};
  KvGeometry cache = good;
  cache.dtype = DType::kFloat8E4M3;
  EXPECT_TRUE(reference->Layout(cache).ok());
  EXPECT_EQ(cpu->Layout(cache).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(cpu->Layout(cache).status().message()),
              AllOf(HasSubstr("kv_dtype"), HasSubstr("float8_e4m3"), HasSubstr("backend cpu"),
                    HasSubstr("cuda and reference")));
  KvGeometry index = good;
  index.index_dtype = DType::kInt8;
  EXPECT_TRUE(reference->Layout(index).ok());
  EXPECT_EQ(cpu->Layout(index).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(cpu->Layout(index).status().message()),
              AllOf(HasSubstr("index_dtype"), HasSubstr("int8"), HasSubstr("backend cpu"),
                    HasSubstr("cuda and reference")));
}

TEST(OutlierIndexOnTheCpu, IsOfInt8Only) {
  Device cpu({"cpu"});
  KvGeometry index = {
      .num_kv_heads = 2, .head_dim = 64, .index = IndexKind::kOutlier, .index_dtype = DType::kInt8};
  ASSERT_TRUE(cpu->Layout(index).ok());
  EXPECT_EQ(cpu->Layout(index)->record_bytes, 2u * 512u);  // 196 and V totals, in cache lines
  for (const DType other : {DType::kFloat16, DType::kFloat32}) {
    index.index_dtype = other;
    EXPECT_EQ(cpu->Layout(index).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(cpu->Layout(index).status().message()),
                AllOf(HasSubstr("index_dtype"), HasSubstr("outlier"), HasSubstr("int8")));
  }
}

TEST(NarrowTypesOnTheReference, TakeTheBytesThatTheyShould) {
  Device reference({"reference"});
  const KvGeometry geometry = {
      .num_kv_heads = 4, .head_dim = 64, .block_size = 64, .dtype = DType::kFloat8E4M3};
  EXPECT_EQ(reference->Layout(geometry)->tile_bytes, 4u * 8320u);
}

}  // namespace
}  // namespace eta::testing
