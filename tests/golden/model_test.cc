// The whole model against an independent float32 / float64 reference (golden numbers of
// eta-semantics.md): real text, the embedded model, every way of attending. The cases in
// golden/model are a choice; ETA_GOLDEN_MODEL_DIR names a folder of more.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "calibration/evaluation/cases/case_tensors.h"
#include "calibration/evaluation/cases/score.h"
#include "engine/checkpoint/checkpoint.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "tests/testing/golden/golden_folder.h"
#include "tests/testing/process/long_run.h"

namespace eta {
namespace {

std::string CaseFolder() {
  return testing::GoldenFolder("model", "ETA_GOLDEN_MODEL_DIR");
}

std::vector<std::string> CaseFiles() {
  std::vector<std::string> files;
  for (const std::string& name : testing::GoldenCases(CaseFolder())) {
    files.push_back(CaseFolder() + "/" + name + ".safetensors");
  }
  return files;
}

std::string CaseName(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = std::filesystem::path(info.param).stem().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

const Checkpoint& EmbeddedModel() {
  static const absl::StatusOr<Checkpoint> checkpoint =
      Checkpoint::Open(ETA_SOURCE_DIR "/models/eta-27m");
  return *checkpoint;
}

struct Outcome {
  ScoreResult result;
  std::vector<float> expected_logits;  // [rows, V]
  size_t vocab_size = 0;

  std::span<const float> Logits(size_t row) const {
    return std::span(result.logits).subspan(row * vocab_size, vocab_size);
  }
  std::span<const float> ExpectedLogits(size_t row) const {
    return std::span(expected_logits).subspan(row * vocab_size, vocab_size);
  }
};

// Why a backend cannot run here: this build has none of that name, or its device is missing.
std::string WhyMissing(const std::string& backend_name) {
  const std::vector<std::string> names = BackendNames();
  if (std::ranges::find(names, backend_name) == names.end()) return "built without " + backend_name;
  const absl::Status status = MakeBackend({.name = backend_name}).status();
  return absl::IsUnavailable(status) ? std::string(status.message()) : "";
}

Outcome RunCase(const std::string& path, const BackendOptions& options, DType kv_dtype) {
  Outcome outcome;
  const auto score_case = ReadScoreCase(path);
  EXPECT_TRUE(score_case.ok()) << score_case.status();
  const auto config = ParseModelConfig(EmbeddedModel().config_json());
  EXPECT_TRUE(config.ok()) << config.status();
  const auto backend = MakeBackend(options);
  EXPECT_TRUE(backend.ok()) << backend.status();
  if (!score_case.ok() || !config.ok() || !backend.ok()) return outcome;
  const auto runner =
      SequenceRunner::Create(EmbeddedModel(), **backend,
                             {.geometry = CaseGeometry(*score_case, *config, kv_dtype),
                              .max_context = static_cast<int32_t>(score_case->tokens.size())});
  EXPECT_TRUE(runner.ok()) << runner.status();
  if (!runner.ok()) return outcome;
  auto result = RunScore(*score_case, **runner);
  EXPECT_TRUE(result.ok()) << result.status();
  const auto file = OpenCase(path);
  if (!result.ok() || !file.ok()) return outcome;
  auto logits = ReadFloats(*file, "logits", DType::kFloat32, {result->rows, config->vocab_size});
  EXPECT_TRUE(logits.ok()) << logits.status();
  if (!logits.ok()) return outcome;
  outcome.result = *std::move(result);
  outcome.expected_logits = *std::move(logits);
  outcome.vocab_size = static_cast<size_t>(config->vocab_size);
  return outcome;
}

// Cases of full attention carry no counts: every row attends to all its keys.
std::vector<int32_t> ExpectedCounts(const std::string& path, const std::string& name,
                                    const std::vector<int32_t>& got) {
  const auto file = OpenCase(path);
  const auto score_case = ReadScoreCase(path);
  if (file->tensors().contains(name)) {
    return *ReadInt32s(*file, name, file->tensors().at(name).shape);
  }
  std::vector<int32_t> all(got.size());
  const auto rows = static_cast<size_t>(score_case->rows());
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = score_case->prompt_tokens + static_cast<int32_t>(i % rows);
  }
  return all;
}

double LargestDifference(std::span<const float> a, std::span<const float> b) {
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

std::vector<float> ExpectedThresholds(const std::string& path) {
  const auto file = OpenCase(path);
  const auto values =
      ReadFloats(*file, "thresholds", DType::kFloat32, file->tensors().at("thresholds").shape);
  EXPECT_TRUE(values.ok()) << values.status();
  return values.value_or(std::vector<float>());
}

void ExpectExact(const std::string& path, const std::string& backend, double logit_tolerance) {
  const Outcome outcome =
      RunCase(path, {.name = backend, .amx = false, .compute = DType::kFloat32}, DType::kFloat32);
  ASSERT_FALSE(outcome.result.logits.empty());
  EXPECT_EQ(outcome.result.tokens_attended,
            ExpectedCounts(path, "tokens_attended", outcome.result.tokens_attended));
  EXPECT_EQ(outcome.result.tokens_read,
            ExpectedCounts(path, "tokens_read", outcome.result.tokens_read));
  const std::vector<float> thresholds = ExpectedThresholds(path);
  ASSERT_EQ(thresholds.size(), outcome.result.thresholds.size());
  EXPECT_LE(LargestDifference(outcome.result.thresholds, thresholds), 1e-4);
  const double largest = LargestDifference(outcome.result.logits, outcome.expected_logits);
  EXPECT_LE(largest, logit_tolerance);
  ::testing::Test::RecordProperty("largest_logit_difference", std::to_string(largest));
}

TEST(GoldenModelFiles, AreThere) {
  EXPECT_FALSE(CaseFiles().empty()) << CaseFolder();
}

class GoldenModel : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenModel, CpuReadsTheSameTokensAndGivesTheSameLogits) {
  ExpectExact(GetParam(), "cpu", 2e-4);
}

TEST_P(GoldenModel, CudaReadsTheSameTokensAndGivesTheSameLogits) {
  if (!WhyMissing("cuda").empty()) GTEST_SKIP() << WhyMissing("cuda");
  ExpectExact(GetParam(), "cuda", 5e-4);
}

INSTANTIATE_TEST_SUITE_P(Case, GoldenModel, ::testing::ValuesIn(CaseFiles()), CaseName);

// One case, and not in each run: plain loops in double precision take their time. Their ops are
// held against golden numbers of their own (decode_test.cc).
TEST(GoldenModelReference, ReferenceReadsTheSameTokensAndGivesTheSameLogits) {
  if (!LongRun()) GTEST_SKIP() << "part of the long run (ETA_TEST_LONG)";
  ExpectExact(CaseFolder() + "/code-floor.safetensors", "reference", 1e-4);
}

double LogSumExp(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

double Divergence(std::span<const float> reference, std::span<const float> ours) {
  const double reference_sum = LogSumExp(reference);
  const double our_sum = LogSumExp(ours);
  double divergence = 0.0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double logprob = reference[i] - reference_sum;
    divergence += std::exp(logprob) * (logprob - (ours[i] - our_sum));
  }
  return divergence;
}

std::ptrdiff_t Best(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

void ExpectNearlyTheSamePredictions(const BackendOptions& options, double most_divergence,
                                    double least_same_best) {
  double divergence = 0.0;
  size_t rows = 0;
  size_t same_best = 0;
  for (const std::string& path : CaseFiles()) {
    const Outcome outcome = RunCase(path, options, DType::kFloat16);
    ASSERT_FALSE(outcome.result.logits.empty()) << path;
    for (size_t row = 0; row < static_cast<size_t>(outcome.result.rows); ++row) {
      divergence += Divergence(outcome.ExpectedLogits(row), outcome.Logits(row));
      same_best += Best(outcome.ExpectedLogits(row)) == Best(outcome.Logits(row)) ? 1 : 0;
      ++rows;
    }
  }
  ASSERT_GT(rows, 0u);
  const auto all = static_cast<double>(rows);
  EXPECT_LT(divergence / all, most_divergence);
  EXPECT_GE(static_cast<double>(same_best) / all, least_same_best);
  ::testing::Test::RecordProperty("mean_divergence", std::to_string(divergence / all));
  ::testing::Test::RecordProperty("same_best",
                                  std::to_string(static_cast<double>(same_best) / all));
}

TEST(GoldenModelDefaultPrecision, HalfPrecisionCacheBarelyMovesThePredictions) {
  ExpectNearlyTheSamePredictions({.name = "cpu", .amx = false}, 1e-3, 0.97);
}

// Where the machine has AMX.
TEST(GoldenModelDefaultPrecision, AmxBarelyMovesThePredictions) {
  ExpectNearlyTheSamePredictions({.name = "cpu"}, 1e-3, 0.97);
}

TEST(GoldenModelDefaultPrecision, SixteenBitsBarelyMoveThePredictionsOfCuda) {
  if (!WhyMissing("cuda").empty()) GTEST_SKIP() << WhyMissing("cuda");
  ExpectNearlyTheSamePredictions({.name = "cuda", .compute = DType::kBFloat16}, 3e-3, 0.95);
}

}  // namespace
}  // namespace eta
