// Checkpoints as Hugging Face transformers writes them, and its logits: LLaMA with its head sizes,
// grouped and tied weights (golden/llama/make_llama.py); Mistral, Qwen2, Qwen3, Qwen3-MoE, SmolLM3,
// gpt-oss and Gemma 3, biases, windows, sinks, experts, layers without RoPE and every scaling of it
// (golden/families/make_families.py). Blocks of weights count as the numbers that they stand for.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "calibration/evaluation/cases/case_tensors.h"
#include "calibration/evaluation/cases/score.h"
#include "engine/checkpoint/checkpoint.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"

namespace eta {
namespace {

constexpr const char* kRoot = ETA_SOURCE_DIR "/tests/golden/";

// Folders under golden/.
std::vector<std::string> CaseNames() {
  std::vector<std::string> names;
  for (const std::string set : {"llama", "families"}) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(kRoot + set, error)) {
      if (entry.is_directory()) names.push_back(set + "/" + entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

struct Case {
  std::string name;
  std::string backend;
};

void PrintTo(const Case& tested, std::ostream* out) {
  *out << tested.name << " on " << tested.backend;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const std::string& name : CaseNames()) {
    for (const char* backend : {"reference", "cpu", "cuda"}) cases.push_back({name, backend});
  }
  return cases;
}

std::string CaseTitle(const ::testing::TestParamInfo<Case>& info) {
  std::string title = info.param.name + "_" + info.param.backend;
  std::ranges::replace_if(
      title, [](char letter) { return letter == '-' || letter == '/'; }, '_');
  return title;
}

// What transformers' own float32 loses: it turns by angles in float32. Scores of the older cases
// are spread more.
double Tolerance(const std::string& name) {
  return name.starts_with("llama/") ? 5e-5 : 2.5e-5;
}

// Prompts are taken `max_rows` tokens at a time.
void ExpectItsLogits(const Checkpoint& checkpoint, const std::string& path, Backend& backend,
                     int32_t max_rows, double tolerance) {
  const auto score_case = ReadScoreCase(path).value();
  const auto config = ParseModelConfig(checkpoint.config_json()).value();
  EXPECT_FALSE(config.has_predictor);
  const auto runner =
      SequenceRunner::Create(checkpoint, backend,
                             {.geometry = CaseGeometry(score_case, config, DType::kFloat32),
                              .weights = WeightFormat::kUnpacked,
                              .max_context = static_cast<int32_t>(score_case.tokens.size()),
                              .max_rows = max_rows})
          .value();
  const auto result = RunScore(score_case, *runner).value();
  const auto file = OpenCase(path).value();
  const auto expected =
      ReadFloats(file, "logits", DType::kFloat32, {result.rows, config.vocab_size}).value();
  EXPECT_EQ(result.rows, 16);
  double largest = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(result.logits[i]) - expected[i]));
  }
  EXPECT_LE(largest, tolerance);
  ::testing::Test::RecordProperty("largest_logit_difference", std::to_string(largest));
}

class GoldenTransformers : public ::testing::TestWithParam<Case> {};

TEST_P(GoldenTransformers, GivesTheLogitsOfTransformers) {
  const std::vector<std::string> names = BackendNames();
  if (std::ranges::find(names, GetParam().backend) == names.end()) {
    GTEST_SKIP() << "built without " << GetParam().backend;
  }
  const auto backend =
      MakeBackend({.name = GetParam().backend, .amx = false, .compute = DType::kFloat32});
  if (absl::IsUnavailable(backend.status())) GTEST_SKIP() << backend.status();
  ASSERT_TRUE(backend.ok()) << backend.status();
  const std::string folder = kRoot + GetParam().name;
  const auto checkpoint = Checkpoint::Open(folder).value();
  for (const int32_t max_rows : {256, 48}) {
    ExpectItsLogits(checkpoint, folder + "/case.safetensors", **backend, max_rows,
                    Tolerance(GetParam().name));
  }
}

INSTANTIATE_TEST_SUITE_P(Case, GoldenTransformers, ::testing::ValuesIn(Cases()), CaseTitle);

TEST(GoldenTransformersFiles, AreThere) {
  EXPECT_GE(CaseNames().size(), 33u) << kRoot;
}

}  // namespace
}  // namespace eta
