// Rivals that choose single keys: what they attend to and count, whatever the size of a block.
#include <memory>
#include <utility>
#include <vector>

#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/rivals/quest.h"
#include "calibration/evaluation/rivals/rival_backend.h"
#include "calibration/evaluation/rivals/window.h"
#include "calibration/evaluation/runtime/runner.h"
#include "engine/checkpoint/checkpoint.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using testing::TinyModel;

// Admits, by key, the keys of the blocks and the tail that another rival reads.
class KeysOf final : public Rival {
 public:
  explicit KeysOf(std::shared_ptr<const Rival> blocks) : blocks_(std::move(blocks)) {}
  KeptParts needs() const override { return {.keys = true, .boxes = true, .values = true}; }
  bool by_key() const override { return true; }
  int64_t IndexBytes(const KvGeometry&, int32_t) const override { return 0; }
  void Admit(const RivalHead& head, std::span<uint8_t> admitted) const override {
    const int32_t full = head.blocks.num_full();
    std::vector<uint8_t> of_blocks(static_cast<size_t>(full));
    for (int32_t j = 0; j < full; ++j) {
      of_blocks[static_cast<size_t>(j)] = IsAlwaysRead(head.options, j, full) ? 1 : 0;
    }
    blocks_->Admit(head, of_blocks);
    const auto b = static_cast<size_t>(head.blocks.block_size());
    for (size_t t = 0; t < admitted.size(); ++t) {
      admitted[t] = t / b >= of_blocks.size() || of_blocks[t / b] != 0 ? 1 : 0;
    }
  }

 private:
  std::shared_ptr<const Rival> blocks_;
};

// Ways of a tiny model of blocks of 16, on the reference.
class RivalsByKey : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int32_t kContext = 160;
  static constexpr int32_t kPrefill = 80;

  RivalsByKey() : model_({.has_predictor = GetParam()}) {}

  static EvaluatedAttention Way(std::shared_ptr<const Rival> rival, AttentionOptions options) {
    options.uniform_floor = options.uniform_floor && GetParam();
    return {{.options = options}, "rival", std::move(rival)};
  }
  std::vector<AttentionScore> Score(const std::vector<EvaluatedAttention>& ways) const {
    const auto checkpoint = Checkpoint::Open(model_.path()).value();
    const auto config = ParseModelConfig(checkpoint.config_json()).value();
    RivalBackend backend(*MakeBackend({.name = "reference"}), 2);
    const auto runner = *SequenceRunner::Create(
        checkpoint, backend,
        {.geometry = MakeKvGeometry(config, DType::kFloat32), .max_context = kContext});
    std::vector<std::vector<int32_t>> windows(1, std::vector<int32_t>(kContext + 1));
    for (size_t i = 0; i <= kContext; ++i) windows[0][i] = static_cast<int32_t>(i * i * 37 % 8000);
    const int32_t special_ids[] = {0, 37};
    return EvaluatePerplexity(OnlyRunner(*runner), windows, ways,
                              {.prefill = kPrefill,
                               .recall = false,
                               .special_ids = special_ids,
                               .rivals = &backend,
                               .mass = 1.0})
        .value();
  }

  TinyModel model_;
};

// Gate, floor and tempered keys too.
TEST_P(RivalsByKey, KeysOfWholeBlocksAreAttendedToAsTheBlocksAre) {
  for (const bool floor : {false, true}) {
    for (const bool shared : {false, true}) {
      const AttentionOptions options = {
          .pinned_blocks = 1, .sink_blocks = 1, .uniform_floor = floor, .shared_reads = shared};
      std::vector<EvaluatedAttention> ways = {
          Way(MakeQuest(0.3), options), Way(std::make_shared<KeysOf>(MakeQuest(0.3)), options)};
      for (EvaluatedAttention& way : ways) way.temper_special = GetParam();
      const auto scores = Score(ways);
      EXPECT_NEAR(scores[1].loss.mean, scores[0].loss.mean, 1e-5);
      EXPECT_LT(scores[0].union_density, 1.0);
      EXPECT_DOUBLE_EQ(scores[1].union_density, scores[0].union_density);
      EXPECT_DOUBLE_EQ(scores[1].head_density, scores[0].head_density);
      EXPECT_DOUBLE_EQ(scores[1].v_read, scores[0].v_read);
      EXPECT_TRUE(scores[0].shadow.has_value());
      EXPECT_FALSE(scores[1].shadow.has_value()) << "that is of whole blocks";
    }
  }
}

// As blocks that hold such a key it would read all at a stride of 16.
TEST_P(RivalsByKey, StridesOfBigBirdAreOfTokens) {
  for (const int32_t stride : {16, 5}) {
    const auto score = Score({Way(MakeBigBird({1.0}, stride), {.pinned_blocks = 0})}).front();
    double wanted = 0.0;
    for (int32_t keys = kPrefill + 1; keys <= kContext; ++keys) {
      int32_t read = 0;
      for (int32_t t = 0; t < keys; ++t) read += t < 4 || t % stride == 0 || t == keys - 1 ? 1 : 0;
      wanted += read / static_cast<double>(keys);
    }
    EXPECT_NEAR(score.union_density, wanted / (kContext - kPrefill), 1e-9) << stride;
    EXPECT_DOUBLE_EQ(score.head_density, score.union_density);
  }
}

INSTANTIATE_TEST_SUITE_P(Gates, RivalsByKey, ::testing::Bool(), [](const auto& gated) {
  return std::string(gated.param ? "gated" : "plain");
});

}  // namespace
}  // namespace eta
