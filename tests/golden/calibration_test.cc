// Frozen thresholds against an independent solution of Algorithm 1 at equal bins, from plain arrays
// and through the backends' ops. The files stand in calibration/; ETA_GOLDEN_CALIBRATION_DIR names
// another folder of such files.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "calibration/calibrate/collected_cells.h"
#include "calibration/solvers/frozen_threshold.h"
#include "engine/checkpoint/safetensors.h"
#include "tests/testing/golden/golden_array.h"
#include "tests/testing/golden/golden_folder.h"
#include "tests/testing/kernels/attention_case.h"
#include "tests/testing/kernels/calibration_reference.h"

namespace eta::testing {
namespace {

std::string Folder() {
  return GoldenFolder("calibration", "ETA_GOLDEN_CALIBRATION_DIR");
}

struct GoldenCase {
  std::vector<ScoreTriangle> sequences;
  ScoreBins bins;
  double beta = 0.0;
  double constant = 0.0;
  double target = 0.0;
  double reached = 0.0;
};

GoldenCase ReadCase(const std::string& name) {
  const SafetensorsFile file = *SafetensorsFile::Open(Folder() + "/" + name + ".safetensors");
  const auto number = [&](const char* key) { return std::stod(file.metadata().at(key)); };
  const std::vector<int64_t> shape = file.tensors().at("scores").shape;
  const auto scores = GoldenArray<float>(file, "scores");
  const auto thresholds = GoldenArray<float>(file, "thresholds");
  GoldenCase golden = {.sequences = {},
                       .bins = {.count = std::stoi(file.metadata().at("bins")),
                                .low = number("low"),
                                .high = number("high")},
                       .beta = number("beta"),
                       .constant = GoldenArray<double>(file, "constant").at(0),
                       .target = GoldenArray<double>(file, "target").at(0),
                       .reached = GoldenArray<double>(file, "reached").at(0)};
  for (int64_t i = 0; i < shape[0]; ++i) {
    const auto square = scores.begin() + i * shape[1] * shape[2];
    const auto row = thresholds.begin() + i * shape[1];
    golden.sequences.push_back({.tokens = static_cast<int32_t>(shape[1]),
                                .scores = {square, square + shape[1] * shape[2]},
                                .thresholds = {row, row + shape[1]}});
  }
  return golden;
}

class GoldenCalibration : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenCalibration, ConstantTargetAndReachedDensity) {
  const GoldenCase golden = ReadCase(GetParam());
  const ScoreHistogram histogram = CollectWhole(golden.sequences, golden.bins, golden.beta, 0.0);
  EXPECT_EQ(histogram.head(0, 0).outside, OutsideScores());
  const auto solved = SolveFrozenThresholds(histogram, {.beta = golden.beta}).value();
  ASSERT_EQ(solved.size(), 1u);
  EXPECT_NEAR(solved.front().threshold, golden.constant, 1e-9);
  EXPECT_NEAR(solved.front().target, golden.target, 1e-12);
  EXPECT_NEAR(solved.front().reached, solved.front().target, 1e-12);
  EXPECT_NEAR(solved.front().reached, golden.reached, 1e-12);
}

// At the golden cases' own bins and at the default ones; measured: 1e-4 and 2.6e-4.
TEST_P(GoldenCalibration, BinsMoveTheConstantByLessThanHalfABin) {
  const GoldenCase golden = ReadCase(GetParam());
  double low = -50.0;
  double high = 50.0;
  for (int i = 0; i < 60; ++i) {
    const double mid = (low + high) / 2;
    (DensityAt(golden.sequences, golden.beta, mid) > golden.target ? low : high) = mid;
  }
  for (const ScoreBins& bins : {golden.bins, ScoreBins()}) {
    const auto solved =
        SolveFrozenThresholds(CollectWhole(golden.sequences, bins, golden.beta, 0.0),
                              {.beta = golden.beta})
            .value();
    EXPECT_LT(std::abs(solved.front().threshold - low), bins.width() / 2);
    EXPECT_LT(std::abs(solved.front().threshold - low), 5e-4);
  }
}

// Attention whose scores are a golden case's: key j is the j-th unit vector of 256 dimensions, so
// that row i's query, 16 times its scores, meets each of them exactly. The last dimension carries
// the row's threshold to the predictor.
AttentionCase AsAttention(const GoldenCase& golden) {
  constexpr int32_t kDim = 256;
  AttentionCase made;
  made.geometry = {.num_kv_heads = 1, .head_dim = kDim, .block_size = 16, .dtype = DType::kFloat32};
  made.beta = static_cast<float>(golden.beta);
  made.bins = golden.bins;
  int64_t rows = 0;
  for (const ScoreTriangle& scores : golden.sequences) rows += scores.tokens;
  made.q = HostTensor(rows, kDim);
  int64_t row = 0;
  for (const ScoreTriangle& scores : golden.sequences) {
    SequenceCase prompt;
    prompt.kind = RowKind::kPrefill;
    prompt.calibrate = true;
    prompt.num_rows = scores.tokens;
    prompt.k = HostTensor(scores.tokens, kDim);
    prompt.v = HostTensor(scores.tokens, kDim);
    for (int32_t t = 0; t < scores.tokens; ++t, ++row) {
      prompt.k.row(t)[t] = 1.0f;
      const std::span<const float> of_row = scores.row(t);
      for (size_t i = 0; i < of_row.size(); ++i) made.q.row(row)[i] = 16.0f * of_row[i];
      made.q.row(row)[kDim - 1] = scores.thresholds[static_cast<size_t>(t)];
    }
    made.sequences.push_back(std::move(prompt));
  }
  made.predictor_weight = HostTensor(1, kDim);
  made.predictor_weight.data[kDim - 1] = 1.0f;
  made.predictor_bias = {0.0f};
  return made;
}

FrozenThreshold SolvedThrough(const BackendUnderTest& backend, const GoldenCase& golden,
                              const ScoreBins& bins) {
  AttentionCase made = AsAttention(golden);
  made.bins = bins;
  Device device(backend);
  CollectedCells collected = *CollectedCells::Create(1, 1, bins);
  EXPECT_EQ(collected.Add(AttentionStep(device, made).Run().cells, made.q.rows), absl::OkStatus());
  return SolveFrozenThresholds(collected.histogram(), {.beta = golden.beta})->front();
}

// A key's weight is rounded to 2^-48, so densities keep 1e-12 and the constant 1e-9; gates that are
// summed in float32 move the target by 1e-7, and the constant with it.
TEST_P(GoldenCalibration, ThroughTheReferencesOp) {
  const GoldenCase golden = ReadCase(GetParam());
  const FrozenThreshold solved = SolvedThrough({"reference"}, golden, golden.bins);
  EXPECT_NEAR(solved.threshold, golden.constant, 1e-9);
  EXPECT_NEAR(solved.target, golden.target, 1e-12);
  EXPECT_NEAR(solved.reached, solved.target, 1e-12);
}

TEST_P(GoldenCalibration, ThroughTheOpsOfAllBackends) {
  const GoldenCase golden = ReadCase(GetParam());
  const FrozenThreshold want = SolvedThrough({"reference"}, golden, ScoreBins());
  for (const BackendUnderTest& backend : JudgedBackends()) {
    if (!WhyMissing(backend).empty()) continue;
    const FrozenThreshold solved = SolvedThrough(backend, golden, ScoreBins());
    EXPECT_NEAR(solved.target, want.target, 1e-7) << TestName(backend);
    EXPECT_NEAR(solved.threshold, want.threshold, 1e-5) << TestName(backend);
    EXPECT_NEAR(solved.reached, solved.target, 1e-12) << TestName(backend);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenCalibration, ::testing::ValuesIn(GoldenCases(Folder())),
                         [](const auto& golden) { return golden.param; });

TEST(GoldenCalibrationFiles, AreThere) {
  EXPECT_GE(GoldenCases(Folder()).size(), 3u);
}

}  // namespace
}  // namespace eta::testing
