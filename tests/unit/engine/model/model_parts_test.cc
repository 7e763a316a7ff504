// The base of the rotary embedding by length, and what generation_config.json says.
#include <cmath>
#include <string>
#include <vector>

#include "engine/model/generation_config.h"
#include "engine/model/rope/rope_base.h"
#include "gmock/gmock.h"
#include "tests/testing/base/status_reason.h"

namespace eta {
namespace {

using ::testing::ElementsAre;

ModelConfig TrainedFor(int32_t context) {
  ModelConfig config;
  config.head_dim = 64;
  config.rope_theta = 5e5f;
  config.max_context = context;
  return config;
}

TEST(RopeBase, WithinTheTrainedLengthItIsTheCheckpointsOwn) {
  const ModelConfig config = TrainedFor(16384);
  for (const int64_t context : {1, 356, 16383, 16384}) {
    EXPECT_EQ(RopeFactor(config, context), 1.0f) << context;
    EXPECT_EQ(RopeTheta(config, context), config.rope_theta) << context;
  }
}

TEST(RopeBase, TheFactorIsRoundedUpToTheNextStep) {
  const float steps[] = {1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
  for (const int32_t trained : {16384, 3000, 4}) {
    const ModelConfig config = TrainedFor(trained);
    for (size_t i = 1; i < std::size(steps); ++i) {
      const auto last = static_cast<int64_t>(steps[i] * static_cast<float>(trained));
      const auto first = static_cast<int64_t>(steps[i - 1] * static_cast<float>(trained)) + 1;
      EXPECT_EQ(RopeFactor(config, first), steps[i]) << trained;
      EXPECT_EQ(RopeFactor(config, last), steps[i]) << trained;
    }
  }
}

TEST(RopeBase, LongestContextsOfTheShortestModelsHaveAStepToo) {
  EXPECT_EQ(RopeFactor(TrainedFor(1), int64_t{1} << 32), 0x1p32f);
  EXPECT_EQ(RopeFactor(TrainedFor(1), (int64_t{1} << 31) + 1), 1.5f * 0x1p31f);
}

// Three questions on a text of 18,250 tokens.
TEST(RopeBase, AllTokensOfAStepHaveOneBase) {
  const ModelConfig config = TrainedFor(16384);
  const float base = RopeTheta(config, 18250 + 256);
  EXPECT_FLOAT_EQ(base, static_cast<float>(5e5 * std::pow(1.25, 64.0 / 62.0)));
  EXPECT_EQ(RopeTheta(config, 18290 + 17), base);
  EXPECT_EQ(RopeTheta(config, 16384 + 1), base);
  EXPECT_EQ(RopeTheta(config, 20480), base);
  EXPECT_GT(RopeTheta(config, 20481), base);
}

std::vector<int32_t> EosOf(const std::string& json) {
  ModelConfig config;
  config.vocab_size = 100;
  config.eos_ids = {2};
  const absl::Status status = ReadGenerationConfig(json, config);
  EXPECT_TRUE(status.ok()) << status;
  return config.eos_ids;
}

TEST(GenerationConfig, ItsEndsOfTextReplaceTheConfigs) {
  EXPECT_THAT(EosOf(R"({"eos_token_id": 7, "temperature": 0.6})"), ElementsAre(7));
  EXPECT_THAT(EosOf(R"({"eos_token_id": [9, 0, 99]})"), ElementsAre(9, 0, 99));
}

TEST(GenerationConfig, WithoutThemTheConfigsStay) {
  for (const char* json :
       {"{}", R"({"eos_token_id": null})", R"({"eos_token_id": []})", R"({"top_p": 0.9})"}) {
    EXPECT_THAT(EosOf(json), ElementsAre(2)) << json;
  }
}

// bad input: config.json | generation_config.json with an end of text outside the vocabulary |
//   refused, the file named
TEST(GenerationConfig, RefusesWhatIsNoIdOfTheVocabulary) {
  for (const char* eos : {"100", "-1", "1.5", "\"2\"", "[2, 100]", "[[2]]", "true", "{}",
                          "18446744073709551615", "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]"}) {
    ModelConfig config;
    config.vocab_size = 100;
    const absl::Status status =
        ReadGenerationConfig("{\"eos_token_id\": " + std::string(eos) + "}", config);
    EXPECT_THAT(status, FailsSaying(kInvalid, "generation_config.json: eos_token_id")) << eos;
    EXPECT_TRUE(config.eos_ids.empty());
  }
  for (const char* text : {"", "[]", "{", "{\"a\": 1, \"a\": 2}"}) {
    ModelConfig config;
    config.vocab_size = 100;
    EXPECT_TRUE(absl::IsInvalidArgument(ReadGenerationConfig(text, config))) << text;
  }
}

}  // namespace
}  // namespace eta
