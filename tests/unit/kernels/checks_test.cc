#include "kernels/checks.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/params/sampling.h"
#include "kernels/weights/ggml_type.h"
#include "tests/testing/base/status_reason.h"

namespace eta {
namespace {

// bad input: Weights | rows that are not whole blocks, numbers that they do not unpack to |
//   INVALID_ARGUMENT, by the type of the blocks
TEST(CheckParts, RowsOfBlocksAreWholeAndUnpackToTheirType) {
  const std::vector<std::byte> bytes(4096);
  const GgmlLayout q4_k = *FindGgmlLayout(static_cast<uint32_t>(GgmlType::kQ4_K));
  const auto check = [&](DType dtype, int64_t cols) {
    const HostMatrix part = {bytes.data(), dtype, 4, cols, &q4_k};
    return CheckParts({&part, 1});
  };
  EXPECT_TRUE(check(DType::kFloat32, 256).ok());
  EXPECT_TRUE(check(DType::kFloat32, 512).ok());
  EXPECT_THAT(check(DType::kFloat32, 288),
              FailsSaying(absl::StatusCode::kInvalidArgument,
                          "parts: rows of 288 numbers are not whole blocks of Q4_K, 256 numbers"));
  EXPECT_THAT(check(DType::kFloat16, 256), FailsSaying(absl::StatusCode::kInvalidArgument,
                                                       "parts: dtype is not what Q4_K unpacks to"));
}

TEST(CheckSample, AMaskHasABitForEachToken) {
  const std::vector<uint32_t> words(4);
  const auto check = [&](size_t count, int64_t vocabulary) {
    SampleRow rows[2];
    rows[1].mask = std::span(words).first(count);
    return CheckSample({TensorView{nullptr, 2, vocabulary, vocabulary}, rows});
  };
  EXPECT_TRUE(check(0, 70).ok());
  EXPECT_TRUE(check(3, 70).ok());
  EXPECT_TRUE(check(3, 96).ok());
  EXPECT_THAT(check(3, 97), FailsSaying(absl::StatusCode::kInvalidArgument,
                                        "mask: has 3 words, and a vocabulary of 97 tokens has 4"));
  EXPECT_THAT(check(3, 64), FailsSaying(absl::StatusCode::kInvalidArgument,
                                        "mask: has 3 words, and a vocabulary of 64 tokens has 2"));
}

TEST(WeightFormats, AreParsedByTheirNames) {
  for (const auto format :
       {WeightFormat::kNative, WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kUnpacked}) {
    EXPECT_EQ(ParseWeightFormat(Name(format)), format);
  }
  EXPECT_EQ(Name(WeightFormat::kInt4), "int4");
  for (const char* name : {"", "int", "int16", "Native"}) {
    EXPECT_EQ(ParseWeightFormat(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace eta
