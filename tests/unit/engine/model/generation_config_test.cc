#include "engine/model/generation_config.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"

namespace eta {
namespace {

using ::testing::ElementsAre;

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
