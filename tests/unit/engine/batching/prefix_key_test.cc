// What two requests must have in common to share the blocks of a prompt.
#include "engine/batching/prefix_key.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace eta {
namespace {

constexpr int32_t kBlock = 16;

struct Setting {
  std::string tenant;
  float rope_theta = 10000.0f;
  ResolvedAttention attention;
};

std::vector<PrefixKey> KeysOf(const Setting& setting, Gate gate) {
  const std::vector<int32_t> prompt(3 * kBlock + 5, 7);
  return PrefixKeys(setting.tenant, setting.rope_theta, setting.attention, gate, prompt, kBlock);
}

Setting Under(float threshold) {
  auto profile = std::make_shared<ThresholdProfile>();
  profile->thresholds.assign(8, threshold);
  Setting setting;
  setting.attention.mode = AttentionMode::kProfile;
  setting.attention.profile = std::move(profile);
  return setting;
}

Setting WithOffset(Setting setting, float offset) {
  setting.attention.options.offset = offset;
  return setting;
}

TEST(PrefixKey, OneForEachFullBlock) {
  const auto keys = KeysOf({}, Gate::kSilu);
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_NE(keys[0], keys[1]) << "a key is over all that stands before its block too";
}

TEST(PrefixKey, HoldsTenantAndBaseWhateverTheGate) {
  for (const Gate gate : {Gate::kNone, Gate::kSilu}) {
    Setting other;
    other.tenant = "acme";
    EXPECT_NE(KeysOf(other, gate)[0], KeysOf({}, gate)[0]);
    other = {};
    other.rope_theta = 12500.0f;
    EXPECT_NE(KeysOf(other, gate)[0], KeysOf({}, gate)[0]);
  }
}

TEST(PrefixKey, HoldsThresholdsAndOffsetOfAGate) {
  const auto key = [](const Setting& setting) { return KeysOf(setting, Gate::kSilu)[0]; };
  EXPECT_NE(key(Under(0.5f)), key({}));
  EXPECT_NE(key(Under(0.5f)), key(Under(0.75f)));
  EXPECT_NE(key(WithOffset(Under(0.5f), 1.0f)), key(Under(0.5f)));
  EXPECT_EQ(key(Under(0.5f)), key(Under(0.5f))) << "of another version, but alike";
}

TEST(PrefixKey, HoldsWhetherSpecialKeysAreTempered) {
  Setting tempers = Under(0.5f);
  tempers.attention.temper_special = true;
  EXPECT_NE(KeysOf(tempers, Gate::kSilu)[0], KeysOf(Under(0.5f), Gate::kSilu)[0]);
  EXPECT_EQ(KeysOf(tempers, Gate::kNone)[0], KeysOf(Under(0.5f), Gate::kNone)[0]);
}

TEST(PrefixKey, HoldsNothingOfWhatADecodeRowReads) {
  Setting other = Under(0.5f);
  other.attention.options.sink_blocks = 3;
  other.attention.options.shared_reads = true;
  other.attention.min_mass = 0.9f;
  EXPECT_EQ(KeysOf(other, Gate::kSilu)[0], KeysOf(Under(0.5f), Gate::kSilu)[0]);
}

TEST(PrefixKey, HoldsNothingOfThemWithoutAGate) {
  const auto key = [](const Setting& setting) { return KeysOf(setting, Gate::kNone)[0]; };
  EXPECT_EQ(key(Under(0.5f)), key({}));
  EXPECT_EQ(key(Under(0.75f)), key({}));
  EXPECT_EQ(key(WithOffset(Under(0.5f), 1.0f)), key({}));
}

TEST(PrefixKey, HoldsAllThatDecidesWhatSparsePrefillAdmits) {
  for (const Gate gate : {Gate::kNone, Gate::kSilu}) {
    Setting sparse = Under(0.5f);
    sparse.attention.options.sparse_prefill = true;
    const auto key = KeysOf(sparse, gate)[0];
    EXPECT_NE(key, KeysOf(Under(0.5f), gate)[0]);
    EXPECT_NE(key, KeysOf(WithOffset(sparse, 1.0f), gate)[0]);
    Setting thresholds = Under(0.75f);
    thresholds.attention.options = sparse.attention.options;
    EXPECT_NE(key, KeysOf(thresholds, gate)[0]);
    const std::vector<std::function<void(AttentionOptions&)>> changes = {
        [](AttentionOptions& o) { o.z += 0.5f; },
        [](AttentionOptions& o) { ++o.pinned_blocks; },
        [](AttentionOptions& o) { ++o.sink_blocks; },
        [](AttentionOptions& o) { ++o.rescue_chunk; },
        [](AttentionOptions& o) { o.uniform_floor = !o.uniform_floor; },
        [](AttentionOptions& o) { o.shared_reads = !o.shared_reads; },
        [](AttentionOptions& o) { o.relative = true; }};
    for (size_t i = 0; i < changes.size(); ++i) {
      Setting other = sparse;
      changes[i](other.attention.options);
      EXPECT_NE(key, KeysOf(other, gate)[0]) << "change " << i;
    }
    Setting confirmed = sparse;
    confirmed.attention.options.confirm = true;
    EXPECT_EQ(key, KeysOf(confirmed, gate)[0]) << "which prefill does not do";
    Setting full = sparse;
    full.attention.options.admit_all = true;
    EXPECT_EQ(KeysOf(full, gate)[0], KeysOf(Under(0.5f), gate)[0]);
    Setting relative = sparse;
    relative.attention.options.relative = true;
    Setting sparser = relative;
    sparser.attention.options.relative_c += 0.5f;
    EXPECT_NE(KeysOf(relative, gate)[0], KeysOf(sparser, gate)[0]);
  }
}

TEST(PrefixKey, HoldsTheZOfEveryHeadOfSparsePrefill) {
  const auto key = [](float z) {
    auto profile = std::make_shared<ThresholdProfile>();
    profile->head_z = {1.0f, z};
    Setting setting;
    setting.attention.options.sparse_prefill = true;
    setting.attention.profile = std::move(profile);
    setting.attention.head_z = true;
    return KeysOf(setting, Gate::kSilu)[0];
  };
  EXPECT_EQ(key(2.0f), key(2.0f));
  EXPECT_NE(key(2.0f), key(2.5f));
}

TEST(PrefixKey, TheLastTokensBlockIsNotShared) {
  Request request;
  EXPECT_EQ(MostSharedBlocks(request, 3 * kBlock, kBlock), 2);
  EXPECT_EQ(MostSharedBlocks(request, 3 * kBlock + 1, kBlock), 3);
  request.output.prompt_logprobs = 0;
  EXPECT_EQ(MostSharedBlocks(request, 3 * kBlock + 1, kBlock), 0);
}

}  // namespace
}  // namespace eta
