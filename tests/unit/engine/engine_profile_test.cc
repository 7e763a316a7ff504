// Requests under a profile: its defaults, its z per head, its thresholds down to the kernel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <functional>
#include <limits>

#include "engine/base/error.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model.h"
#include "engine/request/request_validation.h"
#include "tests/testing/engine/engine_run.h"

namespace eta::testing {
namespace {

// As calibration makes it for the model that the engine serves.
ThresholdProfile MakeProfile(const EngineInfo& info) {
  ThresholdProfile profile;
  profile.name = "frozen";
  profile.num_layers = info.config.num_layers;
  profile.num_query_heads = info.config.num_query_heads;
  if (info.config.has_relative_thresholds()) {
    profile.relative_c = -2.5f;
  } else {
    for (int i = 0; i < info.config.num_layers * info.config.num_query_heads; ++i) {
      profile.thresholds.push_back(0.3f + 0.1f * static_cast<float>(i % 5));
    }
  }
  profile.model_fingerprint = info.model_fingerprint;
  profile.tokenizer_fingerprint = info.tokenizer_fingerprint;
  profile.block_size = info.block_size;
  profile.sub_block = info.sub_block;
  return profile;
}

AttentionChoice Under(ThresholdProfile profile) {
  return {.mode = AttentionMode::kProfile,
          .profile = std::make_shared<ThresholdProfile>(std::move(profile))};
}

class ProfileTest : public ::testing::Test {
 protected:
  Recorder::Answer Run(const AttentionChoice& attention, int32_t prompt = 300) {
    Request request = Greedy(Prompt(prompt, 1), 20);
    request.attention = attention;
    return Ask(*engine_, request);
  }
  std::vector<float> EveryHead(float value) const {
    return std::vector<float>(MakeProfile(engine_->info()).thresholds.size(), value);
  }

  TinyModel model_;
  const std::unique_ptr<Engine> engine_ = Start(OptionsFor(model_));
};

TEST(ProfileBits, ReachTheKernelsOfEveryBackend) {
  const TinyModel model;
  EngineOptions options = OptionsFor(model);
  const auto checkpoint = Checkpoint::Open(options.model_dir).value();
  std::vector<std::string> backends = {"reference", "cpu"};
  if (const char* backend = std::getenv("ETA_TEST_BACKEND")) backends = {backend};
  for (const std::string& name : backends) {
    options.backend.name = name;
    const auto backend = MakeBackend(options.backend).value();
    const auto loaded =
        Model::Load(checkpoint, *backend, {.max_rows = 64, .max_context = 256}).value();
    const ModelConfig& config = loaded->config();
    const auto cache =
        KvCache::Create(*backend, config, MakeKvGeometry(config, options.kv_dtype), 8).value();
    // Odd values, each of them its own: no other order and no rounding gives the same bits.
    auto profile = std::make_shared<ThresholdProfile>();
    profile->num_layers = config.num_layers;
    profile->num_query_heads = config.num_query_heads;
    for (int i = 0; i < config.num_layers * config.num_query_heads; ++i) {
      profile->thresholds.push_back(std::bit_cast<float>(0x3e99999bu + 0x10203u * i));
    }
    profile->thresholds[1] = -0.0f;
    profile->thresholds[2] = std::numeric_limits<float>::denorm_min();
    profile->thresholds[6] = -1e30f;
    AttentionChoice choice;
    choice.mode = AttentionMode::kProfile;
    choice.profile = profile;
    const ResolvedAttention attention = ResolveAttention(choice, config);

    const std::vector<int32_t> tokens = Prompt(20, 1);
    const std::vector<int32_t> blocks = {3, 1};
    std::vector<SequenceRows> rows(2);
    rows[0] = {.row_begin = 0, .num_rows = 19, .kind = RowKind::kPrefill, .block_table = blocks};
    rows[1] = {.row_begin = 19, .num_rows = 1, .position = 0, .kind = RowKind::kDecode};
    const std::vector<int32_t> other_blocks = {5};
    rows[1].block_table = other_blocks;
    for (SequenceRows& sequence : rows) {
      sequence.rope_theta = config.rope_theta;
      attention.ApplyTo(sequence);
    }
    std::vector<float> thresholds(20 * profile->thresholds.size());
    ASSERT_TRUE(loaded->Forward({tokens, rows}, *cache, {.thresholds = thresholds.data()}).ok());
    ASSERT_TRUE(loaded->Finish().ok());
    const auto heads = static_cast<size_t>(config.num_query_heads);
    for (size_t i = 0; i < thresholds.size(); ++i) {
      const size_t layer = i / (20 * heads);
      ASSERT_EQ(std::bit_cast<uint32_t>(thresholds[i]),
                std::bit_cast<uint32_t>(profile->thresholds[layer * heads + i % heads]))
          << name << ", layer " << layer << ", row " << i / heads % 20 << ", head " << i % heads;
    }
  }
}

TEST_F(ProfileTest, GivesTheDefaultsAndWhatTheRequestSaysOverridesThem) {
  ThresholdProfile profile = MakeProfile(engine_->info());
  profile.settings.offset = 0.25f;
  profile.settings.z = 0.75f;
  profile.settings.uniform_floor = false;
  auto started = Run(Under(profile)).started.at(0).attention;
  EXPECT_EQ(started.options.offset, 0.25f);
  EXPECT_EQ(started.options.z, 0.75f);
  EXPECT_FALSE(started.options.uniform_floor);
  EXPECT_FALSE(started.head_z);

  AttentionChoice choice = Under(profile);
  choice.settings.offset = 0.0f;
  choice.settings.z = 2.5f;
  choice.settings.uniform_floor = true;
  started = Run(choice).started.at(0).attention;
  EXPECT_EQ(started.options.offset, 0.0f);
  EXPECT_EQ(started.options.z, 2.5f);
  EXPECT_TRUE(started.options.uniform_floor);

  started = Run(Under(MakeProfile(engine_->info()))).started.at(0).attention;
  EXPECT_EQ(started.options.offset, 0.0f);
  EXPECT_EQ(started.options.z, 1.5f);
  EXPECT_TRUE(started.options.uniform_floor);
}

TEST_F(ProfileTest, ZPerHeadAppliesUntilTheRequestSaysItsOwn) {
  const auto bytes = [&](const AttentionChoice& choice) {
    const auto answer = Run(choice);
    EXPECT_TRUE(answer.finished) << answer.status;
    return answer.finished->attention.kv_bytes_read;
  };
  ThresholdProfile profile = MakeProfile(engine_->info());
  AttentionChoice choice = Under(profile);
  choice.settings.z = 0.0f;
  const auto narrow = bytes(choice);
  choice.settings.z = 4.0f;
  const auto wide = bytes(choice);
  EXPECT_LT(narrow, wide);

  profile.head_z = EveryHead(0.0f);
  EXPECT_TRUE(Run(Under(profile)).started.at(0).attention.head_z);
  EXPECT_EQ(bytes(Under(profile)), narrow);
  profile.head_z = EveryHead(4.0f);
  EXPECT_EQ(bytes(Under(profile)), wide);
  choice = Under(profile);
  choice.settings.z = 0.0f;
  EXPECT_EQ(bytes(choice), narrow);
  EXPECT_FALSE(Run(choice).started.at(0).attention.head_z);
}

TEST_F(ProfileTest, PrefixesAreSharedAcrossZAndNotAcrossThresholdsOrOffset) {
  const auto cached = [&](const ThresholdProfile& profile) {
    return Run(Under(profile)).finished->cached_tokens;
  };
  ThresholdProfile profile = MakeProfile(engine_->info());
  EXPECT_EQ(cached(profile), 0);
  EXPECT_EQ(cached(profile), 288);
  profile.head_z = EveryHead(3.0f);
  profile.version = 7;
  EXPECT_EQ(cached(profile), 288) << "z decides what decode rows read, not what K and V are";
  profile.settings.offset = 0.5f;
  EXPECT_EQ(cached(profile), 0);
  profile.settings.offset.reset();
  profile.thresholds[5] = std::nextafter(profile.thresholds[5], 9.0f);
  EXPECT_EQ(cached(profile), 0);
}

TEST_F(ProfileTest, OfAnotherModelTokenizerOrBlockSizeIsRefusedByName) {
  const auto metadata = [&](const std::function<void(ThresholdProfile&)>& change) {
    ThresholdProfile profile = MakeProfile(engine_->info());
    change(profile);
    const absl::Status status = Run(Under(profile), 10).status;
    const ErrorDetail detail = GetErrorDetail(status);
    if (status.ok()) return std::string("ok");
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(detail.reason, "PROFILE_MISMATCH");
    return detail.metadata.at("mismatch");
  };
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(metadata([](ThresholdProfile&) {}), "ok");
  EXPECT_EQ(metadata([](ThresholdProfile& p) { p.model_fingerprint[3] = 'x'; }),
            "model_fingerprint");
  EXPECT_EQ(metadata([](ThresholdProfile& p) { p.tokenizer_fingerprint = "x"; }),
            "tokenizer_fingerprint");
  EXPECT_EQ(metadata([](ThresholdProfile& p) { p.block_size = 128; }), "block_size");
  EXPECT_EQ(metadata([](ThresholdProfile& p) { p.sub_block = 0; }), "sub_block");
  EXPECT_EQ(metadata([](ThresholdProfile& p) { p.num_layers = 3; }), "layers and heads");
  EXPECT_EQ(metadata([](ThresholdProfile& p) { p.thresholds.pop_back(); }), "thresholds");
  EXPECT_EQ(metadata([](ThresholdProfile& p) { p.head_z = {1.0f}; }), "head_z");
  EXPECT_EQ(metadata([&](ThresholdProfile& p) { p.thresholds[5] = kNaN; }), "thresholds[5]");
  EXPECT_EQ(metadata([&](ThresholdProfile& p) { p.thresholds[5] = -kInfinity; }), "thresholds[5]");
  EXPECT_EQ(metadata([&](ThresholdProfile& p) {
              p.head_z = EveryHead(1.0f);
              p.head_z[2] = 16.01f;
            }),
            "head_z[2]");
  EXPECT_EQ(metadata([](ThresholdProfile& p) { p.settings.z = -0.1f; }), "z[0]");
  EXPECT_EQ(metadata([&](ThresholdProfile& p) { p.settings.offset = kNaN; }), "offset[0]");
  // What a profile does not say is not checked.
  EXPECT_EQ(metadata([](ThresholdProfile& p) {
              p.model_fingerprint.clear();
              p.tokenizer_fingerprint.clear();
              p.block_size = 0;
              p.sub_block = 0;
            }),
            "ok");
}

// Its thresholds gate a prompt, so that K and V of deeper layers depend on them; without a gate
// they only choose blocks of decode rows.
TEST(ProfilePrefix, IsSharedWithOtherModesWhereTheModelHasNoGate) {
  for (const bool gated : {true, false}) {
    const TinyModel model({.has_predictor = gated});
    const auto engine = Start(OptionsFor(model));
    EngineOptions unshared = OptionsFor(model);
    unshared.prefix_cache = false;
    const auto alone = Start(unshared);
    Request request = Greedy(Prompt(100, 1), 8);
    EXPECT_EQ(Ask(*engine, request).started.at(0).cached_tokens, 0);
    for (const float offset : {0.0f, 0.5f}) {
      ThresholdProfile profile = MakeProfile(engine->info());
      profile.settings.offset = offset;
      for (float& threshold : profile.thresholds) threshold += offset;
      request.attention = Under(std::move(profile));
      const auto answer = Ask(*engine, request);
      EXPECT_EQ(answer.started.at(0).cached_tokens, gated ? 0 : 96) << "offset " << offset;
      EXPECT_EQ(answer.ids, Ask(*alone, request).ids) << "offset " << offset;
    }
  }
}

TEST(ProfileFloor, NeedsAGate) {
  TinyModelOptions plain;
  plain.has_predictor = false;
  const TinyModel model(plain);
  const auto engine = Start(OptionsFor(model));
  ThresholdProfile profile = MakeProfile(engine->info());
  profile.settings.uniform_floor = true;
  Request request = Greedy(Prompt(40, 1), 4);
  request.attention = Under(profile);
  const auto refused = Ask(*engine, request);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status)) << refused.status;
  EXPECT_EQ(GetErrorDetail(refused.status).reason, "UNSUPPORTED_BY_MODEL");
  request.attention.settings.uniform_floor = false;
  EXPECT_TRUE(Ask(*engine, request).finished);
}

}  // namespace
}  // namespace eta::testing
