// What calibration counts on a GPU, against the reference: prompts of several tiles beside other
// rows, with all types of cache, histograms that fit shared memory and that do not, and as many
// heads as keep all of the device busy or leave most of it idle.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/base/special_floats.h"
#include "tests/testing/kernels/attention_case.h"
#include "tests/testing/kernels/cell_differences.h"

namespace eta::testing {
namespace {

// 1 MB a head: no multiprocessor has so much memory.
constexpr ScoreBins kManyBins = {.count = 1 << 17};

struct CalibrationShape {
  std::string name;
  KvGeometry geometry;
  int32_t group = 1;
  int32_t rows = 0;  // of the longest prompt
  ScoreBins bins = {};

  friend void PrintTo(const CalibrationShape& shape, std::ostream* out) { *out << shape.name; }
};

// Keys wander from block to block, so that bounds differ.
HostTensor WanderingKeys(Random& random, int32_t num_keys, int64_t cols, int32_t block_size) {
  HostTensor keys = Normal(random, num_keys, cols, 0.7f);
  HostTensor drift;
  for (int32_t t = 0; t < num_keys; ++t) {
    if (t % block_size == 0) drift = Normal(random, 1, cols, 0.8f);
    for (int64_t i = 0; i < cols; ++i) keys.row(t)[i] += drift.row(0)[i];
  }
  return keys;
}

// Two prompts that calibrate, one from its middle on; a prompt that does not and rows that decode
// stand between them.
AttentionCase MakeCalibrationCase(const CalibrationShape& shape, uint64_t seed) {
  Random random(seed);
  AttentionCase made;
  made.seed = seed;
  made.geometry = shape.geometry;
  made.num_query_heads = shape.geometry.num_kv_heads * shape.group;
  made.bins = shape.bins;
  const auto add = [&](RowKind kind, int32_t position, int32_t num_rows, bool calibrate,
                       AttentionOptions options) {
    SequenceCase sequence;
    sequence.kind = kind;
    sequence.position = position;
    sequence.num_rows = num_rows;
    sequence.attention = options;
    sequence.calibrate = calibrate;
    const int64_t cols = int64_t{made.geometry.num_kv_heads} * made.geometry.head_dim;
    sequence.k = WanderingKeys(random, position + num_rows, cols, made.geometry.block_size);
    sequence.v = Normal(random, position + num_rows, cols);
    for (int32_t h = 0; h < made.num_query_heads; ++h) {
      sequence.thresholds.push_back(static_cast<float>(UniformReal(random, -0.5, 2.5)));
    }
    made.sequences.push_back(std::move(sequence));
  };
  add(RowKind::kPrefill, 0, shape.rows, true, {});
  add(RowKind::kDecode, 100, 2, false, {});
  add(RowKind::kPrefill, 0, 70, false, {});
  add(RowKind::kPrefill, 3 * made.geometry.block_size + 5, 90, true,
      {.offset = 0.5f, .pinned_blocks = 0});
  made.q = Normal(random, shape.rows + 2 + 70 + 90,
                  int64_t{made.num_query_heads} * made.geometry.head_dim);
  return made;
}

std::string Differences(const AttentionCase& made) {
  Device reference({.name = "reference"});
  Device device({.name = "cuda"});
  const std::vector<uint64_t> want = AttentionStep(reference, made).Run().cells;
  return CellDifferences(made, AttentionStep(device, made).Run().cells, want);
}

class CudaCalibration : public ::testing::TestWithParam<CalibrationShape> {
 protected:
  void SetUp() override {
    const std::string why = WhyMissing({.name = "cuda"});
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(CudaCalibration, CountsWhatTheReferenceCounts) {
  const AttentionCase made = MakeCalibrationCase(GetParam(), 3);
  EXPECT_EQ(Differences(made), "") << made.Describe();
}

TEST_P(CudaCalibration, WhatIsNotANumberSpoilsItsOwnRowsAlone) {
  CalibrationShape shape = GetParam();
  shape.rows = std::min(shape.rows, 150);
  AttentionCase made = MakeCalibrationCase(shape, 4);
  for (const int64_t row : {int64_t{0}, int64_t{77}, made.q.rows - 1}) {
    made.q.row(row)[made.q.cols - 1] = kNaN;  // of the last head
  }
  made.sequences[3].thresholds[0] = kNaN;
  EXPECT_EQ(Differences(made), "") << made.Describe();
}

TEST_P(CudaCalibration, WithoutAGateOnlyItsSumIsMissing) {
  CalibrationShape shape = GetParam();
  shape.rows = std::min(shape.rows, 150);
  AttentionCase made = MakeCalibrationCase(shape, 5);
  made.gate = Gate::kNone;
  EXPECT_EQ(Differences(made), "") << made.Describe();
}

KvGeometry Geometry(int32_t num_kv_heads, int32_t head_dim, int32_t block_size, DType dtype,
                    DType index_dtype = DType::kFloat16) {
  return {.num_kv_heads = num_kv_heads,
          .head_dim = head_dim,
          .block_size = block_size,
          .dtype = dtype,
          .index_dtype = index_dtype};
}

// On 132 multiprocessors: 18 tiles a head for 16 thread blocks; one thread block a head; fewer
// multiprocessors than heads.
const CalibrationShape kCalibrationShapes[] = {
    {"eight_heads_of_64", Geometry(2, 64, 64, DType::kFloat16), 4, 1100},
    {"heads_of_128_and_narrow_index", Geometry(2, 128, 16, DType::kBFloat16, DType::kInt8), 8, 500},
    {"heads_of_96", Geometry(2, 96, 32, DType::kBFloat16), 3, 300, {.low = -6.0, .high = 7.5}},
    {"many_bins", Geometry(3, 128, 32, DType::kFloat16), 16, 300, kManyBins},
    {"more_heads_than_multiprocessors", Geometry(10, 64, 64, DType::kBFloat16), 16, 200},
    {"eight_bits", Geometry(2, 64, 16, DType::kFloat8E4M3, DType::kInt8), 5, 400},
    {"eight_bits_in_long_blocks", Geometry(1, 96, 128, DType::kFloat8E4M3), 3, 400, kManyBins},
    {"eight_bits_without_tensor_cores", Geometry(1, 128, 64, DType::kFloat8E4M3), 20, 150},
    {"any_geometry", Geometry(1, 80, 24, DType::kFloat32, DType::kInt8), 20, 250},
    {"any_geometry_in_16_bits", Geometry(2, 64, 40, DType::kFloat16), 7, 250, {.count = 1000}}};

INSTANTIATE_TEST_SUITE_P(Kernels, CudaCalibration, ::testing::ValuesIn(kCalibrationShapes),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace eta::testing
