// Frozen thresholds against an independent solution of Algorithm 1 at equal bins. The files stand
// in calibration/; ETA_GOLDEN_CALIBRATION_DIR names another folder of such files.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "calibration/frozen_threshold.h"
#include "engine/safetensors.h"
#include "tests/golden/golden_folder.h"
#include "tests/unit/calibration_reference.h"

namespace eta::testing {
namespace {

std::string Folder() {
  return GoldenFolder("calibration", "ETA_GOLDEN_CALIBRATION_DIR");
}

template <typename T>
std::vector<T> Array(const SafetensorsFile& file, const std::string& name) {
  const std::vector<std::byte> bytes = *file.Read(name);
  std::vector<T> array(bytes.size() / sizeof(T));
  std::memcpy(array.data(), bytes.data(), array.size() * sizeof(T));
  return array;
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
  const auto scores = Array<float>(file, "scores");
  const auto thresholds = Array<float>(file, "thresholds");
  GoldenCase golden = {.sequences = {},
                       .bins = {.count = std::stoi(file.metadata().at("bins")),
                                .low = number("low"),
                                .high = number("high")},
                       .beta = number("beta"),
                       .constant = Array<double>(file, "constant").at(0),
                       .target = Array<double>(file, "target").at(0),
                       .reached = Array<double>(file, "reached").at(0)};
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
  const auto solved = SolveFrozenThresholds(histogram, {.beta = golden.beta});
  ASSERT_TRUE(solved.ok()) << solved.status();
  ASSERT_EQ(solved->size(), 1u);
  EXPECT_NEAR(solved->front().threshold, golden.constant, 1e-9);
  EXPECT_NEAR(solved->front().target, golden.target, 1e-12);
  EXPECT_NEAR(solved->front().reached, solved->front().target, 1e-12);
  EXPECT_NEAR(solved->front().reached, golden.reached, 1e-12);
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
    const auto solved = SolveFrozenThresholds(
        CollectWhole(golden.sequences, bins, golden.beta, 0.0), {.beta = golden.beta});
    ASSERT_TRUE(solved.ok()) << solved.status();
    EXPECT_LT(std::abs(solved->front().threshold - low), bins.width() / 2);
    EXPECT_LT(std::abs(solved->front().threshold - low), 5e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenCalibration, ::testing::ValuesIn(GoldenCases(Folder())),
                         [](const auto& golden) { return golden.param; });

TEST(GoldenCalibrationFiles, AreThere) {
  EXPECT_GE(GoldenCases(Folder()).size(), 3u);
}

}  // namespace
}  // namespace eta::testing
