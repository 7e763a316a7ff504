// The CPU's ops against the reference, on random ragged cases; and that neither threads nor a
// second run change a bit.

#include "training/cpu/cpu_backend.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/testing/training/attention_case.h"
#include "tests/testing/training/harness.h"
#include "tests/testing/training/native_sparse_case.h"
#include "tests/testing/training/op_cases.h"
#include "training/reference/reference_backend.h"

namespace eta::training {
namespace {

using testing::AttentionCase;
using testing::Harness;
using testing::Results;

constexpr double kTolerance = 1e-5;
// Of compressed attention, whose products are the library's: it adds in an order of the
// processor's.
constexpr double kLibraryTolerance = 2e-5;
constexpr uint64_t kCases = 200;
constexpr int32_t kLongest = 200;
// Inputs are of size 1. Where gradients cancel to nothing, errors are held against a part of that.
constexpr double kSmallest = 0.1;

const std::vector<int32_t>& HeadDims() {
  static const std::vector<int32_t> dims = {2, 6, 16, 32, 64, 64, 128};
  return dims;
}

void ExpectClose(const Results& got, const Results& expected, const std::string& which,
                 double tolerance = kTolerance) {
  ASSERT_EQ(got.size(), expected.size()) << which;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(testing::RelativeError(got[i].values, expected[i].values, kSmallest), tolerance)
        << which << ": " << got[i].name;
  }
}

void ExpectEqual(const Results& got, const Results& expected, const std::string& which) {
  ASSERT_EQ(got.size(), expected.size()) << which;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].values, expected[i].values) << which << ": " << got[i].name;
  }
}

TEST(TrainingCpu, AttentionIsTheReferences) {
  const auto cpu = cpu::MakeBackend(2);
  const auto reference = reference::MakeBackend();
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    AttentionCase c = testing::RandomAttentionCase(seed, HeadDims(), kLongest);
    ClearNearTies(c, DType::kFloat64);
    Harness on_cpu(*cpu);
    Harness on_reference(*reference);
    ExpectClose(RunAttention(c, on_cpu), RunAttention(c, on_reference),
                "seed " + std::to_string(seed) + ": " + c.Describe());
  }
  EXPECT_TRUE(cpu->Finish().ok());
}

// Long ones leave blocks to choose from, and which of two near ones is taken may differ.
TEST(TrainingCpu, CompressedAttentionIsTheReferences) {
  const auto cpu = cpu::MakeBackend(2);
  const auto reference = reference::MakeBackend();
  bool chose = false;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const testing::CompressedCase c = testing::RandomCompressedCase(seed, {2, 6, 16, 64}, 1400);
    const std::string which = "seed " + std::to_string(seed) + ": " + c.Describe();
    Harness on_cpu(*cpu);
    Harness on_reference(*reference);
    std::vector<uint64_t> selected;
    std::vector<uint64_t> judged;
    const Results got = RunCompressedAttention(c, on_cpu, true, &selected);
    ExpectClose(got, RunCompressedAttention(c, on_reference, true, &judged), which,
                kLibraryTolerance);
    EXPECT_LE(ChoiceError(c, selected), kTolerance) << which;
    EXPECT_LE(ChoiceError(c, judged), 1e-12) << which;
    chose |= c.shape.length > (kSelectedBlocks + 1) * kRegulariserBlock;
  }
  EXPECT_TRUE(chose);
  EXPECT_TRUE(cpu->Finish().ok());
}

TEST(TrainingCpu, EveryOtherOpIsTheReferences) {
  const auto cpu = cpu::MakeBackend(2);
  const auto reference = reference::MakeBackend();
  for (const testing::OpCase& op : testing::OpCases()) {
    for (uint64_t seed = 0; seed < kCases; ++seed) {
      Harness on_cpu(*cpu);
      Harness on_reference(*reference);
      ExpectClose(op.run(seed, on_cpu), op.run(seed, on_reference),
                  op.name + ", seed " + std::to_string(seed));
    }
  }
  EXPECT_TRUE(cpu->Finish().ok());
}

TEST(TrainingCpu, ThreadsChangeNoBit) {
  const auto one = cpu::MakeBackend(1);
  const auto three = cpu::MakeBackend(3);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const AttentionCase c = testing::RandomAttentionCase(seed, HeadDims(), kLongest);
    Harness with_one(*one);
    Harness with_three(*three);
    ExpectEqual(RunAttention(c, with_one), RunAttention(c, with_three), c.Describe());
    const testing::CompressedCase compressed =
        testing::RandomCompressedCase(seed, HeadDims(), kLongest);
    std::vector<uint64_t> selected;
    std::vector<uint64_t> again;
    ExpectEqual(RunCompressedAttention(compressed, with_one, true, &selected),
                RunCompressedAttention(compressed, with_three, true, &again),
                compressed.Describe());
    EXPECT_EQ(selected, again) << compressed.Describe();
    for (const testing::OpCase& op : testing::OpCases()) {
      ExpectEqual(op.run(seed, with_one), op.run(seed, with_three), op.name);
    }
  }
}

}  // namespace
}  // namespace eta::training
