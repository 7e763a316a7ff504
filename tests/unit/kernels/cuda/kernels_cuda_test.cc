// Many large ragged steps on a GPU against the reference. ETA_CUDA_BATCHES says how many (60),
// ETA_CUDA_FIRST_BATCH with which seed they begin (1).

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/kernels/cell_differences.h"
#include "tests/testing/kernels/judged_case.h"
#include "tests/testing/kernels/near_ties.h"

namespace eta::testing {
namespace {

int FromEnvironment(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : fallback;
}

// The reference's answers to seeds `first` .. `first + count - 1`, from all cores.
std::vector<JudgedCase> Judge(uint64_t first, size_t count, NarrowTypes narrow) {
  std::vector<JudgedCase> cases(count);
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < count; at = next++) {
        cases[at] = MakeJudgedCase(first + at, narrow);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return cases;
}

// The first differences in words; empty if there is none. `worst` becomes the largest error of a
// row and head if that is larger.
std::string Differences(const JudgedCase& judged, const AttentionResult& got, double rounding,
                        double& worst) {
  const AttentionCase& made = *judged.attention_case;
  const AttentionResult& want = judged.want;
  std::ostringstream text;
  int found = 0;
  const auto report = [&]() -> std::ostream& {
    ++found;
    return text << "\n";
  };
  constexpr int kMost = 5;
  const std::string selections = SelectionDifferences(made, *judged.reference, got, want);
  if (!selections.empty()) report() << selections;
  const int32_t d = made.geometry.head_dim;
  for (int64_t r = 0; r < want.out.rows; ++r) {
    if (!SameSelection(made, r, got, want)) continue;
    for (int32_t h = 0; h < made.num_query_heads; ++h) {
      const int64_t at = int64_t{h} * d;
      const double error = RelativeError(got.out.row(r) + at, want.out.row(r) + at, d);
      worst = std::max(worst, error);
      if (error < 2e-3 + rounding || found >= kMost) continue;  // a NaN is no less
      report() << "row " << r << ", head " << h << ": output differs by " << error;
    }
  }
  text << RecallDifferences(made, *judged.reference, got, want);
  text << ShadowDifferences(made, got, want, 2e-3 + rounding);
  text << CellDifferences(made, got.cells, want.cells);
  return text.str();
}

// Steps without prefill rows run four times: launched with a shadow, launched, captured as a graph,
// replayed.
void RunBatches(NarrowTypes narrow) {
  const BackendUnderTest backends[] = {{.name = "cuda", .compute = DType::kFloat32},
                                       {.name = "cuda", .compute = DType::kBFloat16}};
  if (!WhyMissing(backends[0]).empty()) GTEST_SKIP() << WhyMissing(backends[0]);
  Device devices[] = {Device(backends[0]), Device(backends[1])};
  const auto first = static_cast<uint64_t>(FromEnvironment("ETA_CUDA_FIRST_BATCH", 1));
  const auto count = static_cast<size_t>(FromEnvironment("ETA_CUDA_BATCHES", 60));
  constexpr size_t kTogether = 64;  // cases in memory at once
  double worst[2] = {};
  int failures = 0;
  for (size_t begin = 0; begin < count; begin += kTogether) {
    const std::vector<JudgedCase> cases =
        Judge(first + begin, std::min(kTogether, count - begin), narrow);
    for (const JudgedCase& judged : cases) {
      const AttentionCase& made = *judged.attention_case;
      const size_t which = made.seed % 2;
      Device& device = devices[which];
      const bool prefill = std::ranges::any_of(
          made.sequences, [](const SequenceCase& s) { return s.kind == RowKind::kPrefill; });
      AttentionStep step(device, made);
      const AttentionResult got = step.Run(prefill ? 1 : 4);
      ASSERT_EQ(device->Finish(), absl::OkStatus()) << made.Describe();
      const std::string differences =
          Differences(judged, got, RoundingError(device.activation_dtype()), worst[which]);
      EXPECT_TRUE(differences.empty()) << made.Describe() << differences;
      if (!differences.empty()) ++failures;
      ASSERT_LT(failures, 10) << "batches have failed; the rest is left out";
      device.Clear();
    }
  }
  ::testing::Test::RecordProperty("batches", std::to_string(count));
  ::testing::Test::RecordProperty("largest_error_float32", std::to_string(worst[0] * 1e6) + "e-6");
  ::testing::Test::RecordProperty("largest_error_bfloat16", std::to_string(worst[1] * 1e6) + "e-6");
}

TEST(CudaRaggedBatches, SelectCountAndAttendAsTheReference) {
  RunBatches({});
}

TEST(CudaRaggedBatches, DoSoWithAnEightBitCache) {
  RunBatches({.cache = true});
}

TEST(CudaRaggedBatches, DoSoWithAnEightBitIndex) {
  RunBatches({.index = true});
}

TEST(CudaRaggedBatches, DoSoWithAnEightBitCacheAndIndex) {
  RunBatches({.cache = true, .index = true});
}

TEST(CudaRaggedBatches, DoSoWithRecordsOfOutliers) {
  RunBatches({.outlier = true});
}

TEST(CudaRaggedBatches, DoSoWithAnEightBitCacheAndRecordsOfOutliers) {
  RunBatches({.cache = true, .outlier = true});
}

TEST(CudaRaggedBatches, DoSoWithHeadsOf256) {
  RunBatches({.wide_heads = true});
}

TEST(CudaRaggedBatches, DoSoWithHeadsOf256AndAnEightBitIndex) {
  RunBatches({.index = true, .wide_heads = true});
}

TEST(CudaRaggedBatches, DoSoWithHeadsOf256AndRecordsOfOutliers) {
  RunBatches({.outlier = true, .wide_heads = true});
}

TEST(CudaRaggedBatches, DoSoWithHeadsOf256AndAnEightBitCache) {
  RunBatches({.cache = true, .wide_heads = true});
}

TEST(CudaRaggedBatches, DoSoWithHeadsOf256AnEightBitCacheAndRecordsOfOutliers) {
  RunBatches({.cache = true, .outlier = true, .wide_heads = true});
}

}  // namespace
}  // namespace eta::testing
