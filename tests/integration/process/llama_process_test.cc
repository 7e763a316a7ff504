// A plain checkpoint in Hugging Face's format, LLaMA's or another family's: served, calibrated over
// the wire, and served sparse. It takes token ids only.
#include <algorithm>

#include "calibration/calibrate/calibrator.h"
#include "calibration/profiles/profile_json.h"
#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;

constexpr int kVocabulary = 257;
constexpr int kTokens = 512;  // of a sequence: eight blocks

void AddIds(int seed, int count, v1::TokenIds& ids) {
  for (int i = 0; i < count; ++i) ids.add_ids(1 + (seed * 97 + i * i * 31 + i) % (kVocabulary - 1));
}

v1::CalibrateRequest Calibration(const std::string& name) {
  v1::CalibrateRequest request;
  request.set_name(name);
  for (int i = 0; i < 4; ++i) AddIds(i, kTokens, *request.add_samples()->mutable_token_ids());
  request.set_sequence_tokens(kTokens);
  request.set_allow_loss(true);  // of noise nothing is known
  return request;
}

v1::GenerateRequest Prompt() {
  v1::GenerateRequest request;
  AddIds(9, kTokens - 64, *request.mutable_token_ids());
  request.mutable_sampling()->set_temperature(0);
  request.mutable_output()->set_text(false);
  request.mutable_output()->set_token_ids(true);
  return request;
}

class LlamaProcessTest : public ::testing::TestWithParam<const char*> {
 protected:
  const TempFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Checkpoints, LlamaProcessTest,
                         ::testing::Values("llama/d64-tied-scaled", "llama/d96", "llama/multi-head",
                                           "families/qwen2", "families/qwen3-bias"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::ranges::replace_if(
                               name, [](char c) { return c == '-' || c == '/'; }, '_');
                           return name;
                         });

TEST_P(LlamaProcessTest, IsCalibratedOverTheWireAndServedSparse) {
  Replica server(std::string(ETA_SOURCE_DIR "/tests/golden/") + GetParam(),
                 folder_.path() + "/profiles.db");
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  EXPECT_EQ(server.Generate(Prompt(), "").mode(), v1::ATTENTION_MODE_DYNAMIC)
      << server.status.error_message();
  EXPECT_LE(server.finished.attention().union_density(), 1.0);

  v1::CalibrateRequest heads = Calibration("heads");
  heads.mutable_target()->set_head_density(0.7);
  v1::CalibrateRequest keys = Calibration("keys");
  keys.mutable_target()->set_union_density(0.75);
  for (const v1::CalibrateRequest* request : {&heads, &keys}) {
    SCOPED_TRACE(request->name());
    const auto profile = server.Calibrate(*request);
    ASSERT_TRUE(profile.has_value()) << server.status.error_message();
    if (request == &heads) {
      EXPECT_NEAR(profile->reached().head_density(), 0.7, kDensityTolerance);
    } else {
      EXPECT_NEAR(profile->reached().union_density(), 0.75, kDensityTolerance);
    }
    EXPECT_FALSE(profile->evidence().has_perplexity_dynamic());
    EXPECT_EQ(profile->floor(), v1::FLOOR_NONE);
    EXPECT_TRUE(profile->has_relative_threshold());
    EXPECT_EQ(profile->thresholds_size(), 0);
    EXPECT_EQ(profile->sink_blocks(), 1);
    EXPECT_EQ(profile->reads(), v1::READS_SHARED);
    EXPECT_EQ(profile->special_keys(), v1::SPECIAL_KEYS_ATTEND);
    EXPECT_EQ(profile->evidence().single_needles().asked(), 6);
    const v1::AttentionUsed used = server.Generate(Prompt(), request->name());
    ASSERT_TRUE(server.status.ok()) << server.status.error_message();
    EXPECT_EQ(used.mode(), v1::ATTENTION_MODE_PROFILE);
    EXPECT_EQ(used.profile(), request->name());
    const v1::AttentionStats& attention = server.finished.attention();
    EXPECT_LE(attention.union_density(), 0.95);
    EXPECT_LE(attention.head_density(), attention.union_density());
    EXPECT_LT(attention.kv_bytes_read(), attention.kv_bytes_dense());
  }

  v1::CalibrateRequest match = Calibration("match");
  match.mutable_target()->mutable_match_dynamic();
  v1::CalibrateRequest dynamic = Calibration("dynamic");
  dynamic.mutable_target()->mutable_dynamic_union_density();
  v1::CalibrateRequest z = keys;
  z.set_z(1.5f);
  v1::CalibrateRequest recall = keys;
  recall.set_z_recall(0.9);
  v1::CalibrateRequest temper = keys;
  temper.set_special_keys(v1::SPECIAL_KEYS_TEMPER);
  for (const v1::CalibrateRequest* request : {&match, &dynamic, &z, &recall, &temper}) {
    EXPECT_FALSE(server.Calibrate(*request).has_value());
    EXPECT_THAT(server.status, FailsWith(StatusCode::FAILED_PRECONDITION, "UNSUPPORTED_BY_MODEL"));
  }

  // Without a target: as sparse as full attention's perplexity allows.
  v1::CalibrateRequest plain = Calibration("plain");
  for (int i = 4; i < 20; ++i) AddIds(i, kTokens, *plain.add_samples()->mutable_token_ids());
  const auto profile = server.Calibrate(plain);
  if (profile.has_value()) {
    EXPECT_EQ(profile->target().max_perplexity_increase(), 0.5);
    const v1::ProfileEvidence& evidence = profile->evidence();
    EXPECT_LE(evidence.perplexity_frozen(), evidence.perplexity_full() * 1.005);
    EXPECT_TRUE(evidence.has_increase_over_full());
    EXPECT_EQ(evidence.choice_documents(), 0) << "it was chosen on what nothing else needs";
  } else {
    // The held-out documents may differ from those that it was chosen on.
    EXPECT_EQ(ReasonOf(server.status), "TARGET_UNREACHABLE") << server.status.error_message();
  }
}

// One constant per head, which nothing here makes for such a model.
TEST(LlamaProfileTest, ConstantsAreStoredAndNotServed) {
  const TempFolder folder;
  Replica server(ETA_SOURCE_DIR "/tests/golden/llama/d64-tied-scaled",
                 folder.path() + "/profiles.db");
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  v1::CalibrateRequest request = Calibration("keys");
  request.mutable_target()->set_union_density(0.7);
  ASSERT_TRUE(server.Calibrate(request).has_value()) << server.status.error_message();
  auto profile = ProfileFromJson(server.Export("keys"));
  ASSERT_TRUE(profile.ok()) << profile.status();
  profile->name = "constants";
  ProfileContent& content = profile->content;
  content.relative_c.reset();
  content.evidence.divergence.reset();  // of relative thresholds alone
  content.thresholds.assign(
      static_cast<size_t>(content.geometry.layers * content.geometry.query_heads), 0.5f);
  content.settings.z = 2.0f;
  server.Import(ProfileToJson(*profile).value());
  ASSERT_TRUE(server.status.ok()) << server.status.error_message();
  server.Generate(Prompt(), "constants");
  EXPECT_THAT(server.status, FailsWith(StatusCode::FAILED_PRECONDITION, "PROFILE_MISMATCH"));
  EXPECT_EQ(MetadataOf(server.status, "mismatch"), "thresholds");
  server.Generate(Prompt(), "keys");
  EXPECT_TRUE(server.status.ok()) << "a good call afterwards: " << server.status.error_message();
}

// bad input: Calibrate | relative thresholds on a server with --index=moment | FAILED_PRECONDITION,
//   UNSUPPORTED_BY_MODEL
TEST(LlamaProfileTest, RelativeThresholdsNeedAnIndexOfOutliers) {
  const TempFolder folder;
  Replica server(ETA_SOURCE_DIR "/tests/golden/llama/d64-tied-scaled",
                 folder.path() + "/profiles.db", {"--index=moment"});
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  v1::CalibrateRequest request = Calibration("keys");
  request.mutable_target()->set_union_density(0.7);
  EXPECT_FALSE(server.Calibrate(request).has_value());
  EXPECT_EQ(server.progress, 0);
  EXPECT_THAT(server.status, FailsWith(StatusCode::FAILED_PRECONDITION, "UNSUPPORTED_BY_MODEL"));
  server.Generate(Prompt(), "");
  EXPECT_TRUE(server.status.ok()) << "a good call afterwards: " << server.status.error_message();
}

}  // namespace
}  // namespace eta::testing
