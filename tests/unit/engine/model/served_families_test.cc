// Families with layers, norms, gates and experts of their own as they are served: a cache of 16
// bits, pages of several groups of layers, packed weights, and on a GPU (ETA_TEST_BACKEND) products
// in bfloat16. Prompts are held against the CPU with a cache of float32 and the same weights.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "tests/testing/engine/engine_run.h"

namespace eta::testing {
namespace {

// Heads of 256, and window layers beside full ones.
TinyModelOptions TinyGemma() {
  return {.num_layers = 4,
          .model_dim = 96,
          .num_query_heads = 4,
          .num_kv_heads = 1,
          .head_dim = 256,
          .model_type = "gemma3_text",
          .sliding_window = 90,
          .window_layers = {true, true, false, true}};
}

// Every row takes all experts, since rounding would change its choice.
TinyModelOptions TinyGptOss() {
  return {.num_layers = 3,
          .num_query_heads = 8,
          .num_kv_heads = 2,
          .head_dim = 64,
          .model_type = "gpt_oss",
          .attention_bias = true,
          .sliding_window = 90,
          .num_experts = 3,
          .experts_per_token = 3,
          .tied = false};
}

struct ServedCase {
  std::string family;
  TinyModelOptions model;
  WeightFormat weights;
};

void PrintTo(const ServedCase& tested, std::ostream* out) {
  *out << tested.family << ", " << Name(tested.weights);
}

std::vector<ServedCase> ServedCases() {
  std::vector<ServedCase> cases;
  for (const WeightFormat weights :
       {WeightFormat::kNative, WeightFormat::kInt8, WeightFormat::kInt4}) {
    cases.push_back({"gemma", TinyGemma(), weights});
    cases.push_back({"gpt_oss", TinyGptOss(), weights});
  }
  return cases;
}

// The log-probabilities of the prompt's tokens. How many come with a step is the backend's choice.
std::vector<float> PromptLogprobs(const Recorder::Answer& answer) {
  std::vector<float> found;
  for (const auto& part : answer.prefill) {
    for (const auto& token : part.prompt_logprobs) found.push_back(token.logprob);
  }
  return found;
}

class ServedFamilies : public ::testing::TestWithParam<ServedCase> {};

TEST_P(ServedFamilies, AnswerNearlyAsTheCpuDoes) {
  const TinyModel model(GetParam().model);
  EngineOptions options = OptionsFor(model);
  options.weights = GetParam().weights;
  EngineOptions exact = options;
  exact.backend.name = "cpu";
  exact.backend.compute = BackendOptions().compute;
  options.kv_dtype = DType::kFloat16;
  const bool rounds = options.backend.name == "cuda";
  if (rounds) options.backend.compute = DType::kBFloat16;
  const auto served = Start(options);
  const auto judge = Start(exact);
  ASSERT_TRUE(served && judge);
  double moved = 0.0;
  int positions = 0;
  for (const bool full : {true, false}) {
    for (uint32_t seed = 0; seed < 3; ++seed) {
      Request request = Greedy(Prompt(150 + 90 * static_cast<int32_t>(seed), seed), 40);
      if (full) request.attention = {.mode = AttentionMode::kFull};
      request.output.prompt_logprobs = 0;
      const auto want = Ask(*judge, request);
      const auto got = Ask(*served, request);
      ASSERT_TRUE(want.finished && got.finished) << got.status << want.status;
      EXPECT_EQ(got.ids.size(), 40u);
      EXPECT_NEAR(got.finished->attention.union_density(), want.finished->attention.union_density(),
                  0.1);
      const std::vector<float> ours = PromptLogprobs(got);
      const std::vector<float> theirs = PromptLogprobs(want);
      ASSERT_EQ(ours.size(), theirs.size());
      for (size_t j = 0; j < ours.size(); ++j, ++positions) {
        moved += std::abs(ours[j] - theirs[j]);
      }
    }
  }
  ASSERT_GT(positions, 0);
  // Numbers of another model are off by 2. The CPU rounds the activations that packed weights are
  // multiplied with to 8 bits, and the least change of them turns some of these the other way.
  const bool packed = GetParam().weights != WeightFormat::kNative;
  const double most = 0.01 + (rounds ? 0.1 : 0.0) + (packed ? 0.2 : 0.0);
  EXPECT_LT(moved / positions, most) << "mean change of a prompt token's log-probability";
  RecordProperty("mean_change", std::to_string(moved / positions));
}

INSTANTIATE_TEST_SUITE_P(Cases, ServedFamilies, ::testing::ValuesIn(ServedCases()),
                         [](const auto& test) {
                           return test.param.family + "_" + std::string(Name(test.param.weights));
                         });

}  // namespace
}  // namespace eta::testing
