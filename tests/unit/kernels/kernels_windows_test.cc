// Layers with a window (eta-semantics.md, "Windows"): a row attends to the keys of its window
// alone, and blocks before it may be gone; on every backend, against the reference, over random
// ragged steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {
namespace {

using ::testing::Combine;
using ::testing::Range;
using ::testing::Values;
using ::testing::ValuesIn;

double WindowedTolerance(const KvGeometry& geometry, DType out) {
  const double exact = geometry.index == IndexKind::kOutlier ? 4e-5 : 1e-5;
  return (geometry.dtype == DType::kFloat32 ? exact : 2e-3) + RoundingError(out);
}

AttentionCase WindowedCase(uint64_t seed, NarrowTypes narrow) {
  AttentionCase made = RandomCase(seed, narrow);
  AddWindow(seed, made);
  return made;
}

void ExpectSameWindowed(const AttentionCase& made, const HostTensor& got, const HostTensor& want,
                        double tolerance) {
  const int32_t d = made.geometry.head_dim;
  for (int64_t r = 0; r < want.rows; ++r) {
    for (int64_t at = 0; at < want.cols; at += d) {
      // The other way round a NaN would pass.
      EXPECT_TRUE(RelativeError(got.row(r) + at, want.row(r) + at, d) < tolerance)
          << "row " << r << ", head " << at / d;
    }
  }
}

class WindowedStep
    : public ::testing::TestWithParam<std::tuple<BackendUnderTest, int, NarrowTypes>> {
 protected:
  BackendUnderTest backend() const { return std::get<0>(GetParam()); }
  AttentionCase Case() const {
    return WindowedCase(static_cast<uint64_t>(std::get<1>(GetParam())), std::get<2>(GetParam()));
  }
  void SetUp() override {
    if (!WhyMissing(backend()).empty()) GTEST_SKIP() << WhyMissing(backend());
  }
};

TEST_P(WindowedStep, MatchesTheReference) {
  const AttentionCase made = Case();
  SCOPED_TRACE(made.Describe());
  Device judge({"reference"});
  Device device(backend());
  const AttentionResult want = AttentionStep(judge, made).Run();
  // A backend with graphs replays the third.
  const AttentionResult got = AttentionStep(device, made).Run(/*times=*/3);
  ExpectSameWindowed(made, got.out, want.out,
                     WindowedTolerance(made.geometry, device.activation_dtype()));
}

// The case with only row `row` of sequence `s`, at its own place.
AttentionCase WindowedRowAlone(const AttentionCase& whole, size_t s, int32_t row,
                               int64_t row_in_step) {
  AttentionCase alone = whole;
  alone.seed = whole.seed + 1000 + static_cast<uint64_t>(row_in_step);
  SequenceCase sequence = whole.sequences[s];
  sequence.position += row;
  sequence.num_rows = 1;
  sequence.parent = -1;
  sequence.shared_blocks = 0;
  for (HostTensor* tensor : {&sequence.k, &sequence.v}) {
    tensor->rows = sequence.num_keys();
    tensor->data.resize(static_cast<size_t>(tensor->rows * tensor->cols));
  }
  alone.sequences = {sequence};
  alone.q = HostTensor(1, whole.q.cols);
  std::copy_n(whole.q.row(row_in_step), whole.q.cols, alone.q.row(0));
  return alone;
}

TEST_P(WindowedStep, ARowDoesNotFeelItsBatch) {
  const AttentionCase made = Case();
  SCOPED_TRACE(made.Describe());
  Device device(backend(), /*num_threads=*/3);
  const AttentionResult together = AttentionStep(device, made).Run();
  Device single(backend(), /*num_threads=*/1);
  int64_t row = 0;
  for (size_t s = 0; s < made.sequences.size(); ++s) {
    const int32_t rows = made.sequences[s].num_rows;
    for (int32_t i = 0; i < rows; i += i < 4 ? 1 : 7) {
      const AttentionCase alone = WindowedRowAlone(made, s, i, row + i);
      const AttentionResult result = AttentionStep(single, alone).Run();
      const float* beside = together.out.row(row + i);
      const double error = RelativeError(result.out.row(0), beside, result.out.cols);
      if (RowsAreExact(backend())) {
        EXPECT_EQ(std::memcmp(result.out.row(0), beside,
                              static_cast<size_t>(result.out.cols) * sizeof(float)),
                  0)
            << "sequence " << s << ", row " << i << " differs by " << error;
      } else {
        EXPECT_TRUE(error < WindowedTolerance(made.geometry, device.activation_dtype()))
            << "sequence " << s << ", row " << i;
      }
    }
    row += rows;
  }
}

TEST_P(WindowedStep, AWindowOverTheContextIsFullAttentionWithoutAGate) {
  AttentionCase made = Case();
  made.window = 1 << 20;
  AttentionCase full = made;
  full.window = 0;
  full.gate = Gate::kNone;
  for (SequenceCase& sequence : full.sequences) {
    sequence.attention = {.uniform_floor = false, .admit_all = true};
    sequence.calibrate = false;
  }
  SCOPED_TRACE(made.Describe());
  Device device(backend());
  const AttentionResult got = AttentionStep(device, made).Run();
  const AttentionResult want = AttentionStep(device, full).Run();
  if (RowsAreExact(backend())) {
    EXPECT_EQ(got.out.data, want.out.data);
  } else {
    ExpectSameWindowed(made, got.out, want.out,
                       WindowedTolerance(made.geometry, device.activation_dtype()));
  }
}

std::string WindowedStepName(const ::testing::TestParamInfo<WindowedStep::ParamType>& test) {
  const auto& [backend, seed, narrow] = test.param;
  return TestName(backend) + (narrow.cache ? "_float8" : "") + (narrow.outlier ? "_outlier" : "") +
         "_" + std::to_string(seed);
}

INSTANTIATE_TEST_SUITE_P(Kernels, WindowedStep,
                         Combine(ValuesIn(JudgedBackends()), Range(1, 31), Values(NarrowTypes())),
                         WindowedStepName);
INSTANTIATE_TEST_SUITE_P(OutlierKernels, WindowedStep,
                         Combine(ValuesIn(JudgedBackends()), Range(101, 106),
                                 Values(NarrowTypes{.outlier = true})),
                         WindowedStepName);
INSTANTIATE_TEST_SUITE_P(NarrowKernels, WindowedStep,
                         Combine(ValuesIn(NarrowBackends()), Range(1, 11),
                                 Values(NarrowTypes{.cache = true})),
                         WindowedStepName);

}  // namespace
}  // namespace eta::testing
