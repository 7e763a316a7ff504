// How command lines name ways of attending.
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/calibration/evaluation_fixture.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using ::testing::Optional;
using testing::TinyModel;

AttentionName Parsed(const std::string& text) {
  const auto name = ParseAttentionName(text);
  EXPECT_TRUE(name.ok()) << text << ": " << name.status();
  return name.value_or(AttentionName());
}

TEST(AttentionName, HasAKindAndItsNumber) {
  EXPECT_EQ(Parsed("full").kind, AttentionKind::kFull);
  EXPECT_EQ(Parsed("dynamic").kind, AttentionKind::kDynamic);
  EXPECT_EQ(Parsed("relative").kind, AttentionKind::kRelative);
  EXPECT_EQ(Parsed("relative").number, std::nullopt);
  EXPECT_THAT(Parsed("relative:-4.6").number, Optional(-4.6f));
  EXPECT_EQ(Parsed("topk:0.25").kind, AttentionKind::kTopK);
  EXPECT_EQ(Parsed("quest:0.1").kind, AttentionKind::kQuest);
  EXPECT_THAT(Parsed("quest:0.1").second, Optional(2.0f)) << "layers that its authors leave dense";
  EXPECT_THAT(Parsed("quest:0.1:0").second, Optional(0.0f));
  EXPECT_EQ(Parsed("oracle:-3.9").kind, AttentionKind::kOracle);
  EXPECT_EQ(Parsed("constants:0.35").kind, AttentionKind::kConstants);
  EXPECT_THAT(Parsed("constants:0.35").number, Optional(0.35f));
  EXPECT_EQ(Parsed("window:256").kind, AttentionKind::kWindow);
  EXPECT_THAT(Parsed("streaming:0.25").number, Optional(0.25f));
  EXPECT_EQ(Parsed("bigbird:256:16").kind, AttentionKind::kBigBird);
  EXPECT_THAT(Parsed("bigbird:256:16").second, Optional(16.0f));
  EXPECT_EQ(Parsed("h2o:256:0.1").kind, AttentionKind::kH2o);
  EXPECT_THAT(Parsed("h2o:256:0.1").second, Optional(0.1f));
  EXPECT_EQ(Parsed("h2o_blocks:256:0.1").kind, AttentionKind::kH2oBlocks);
  EXPECT_EQ(Parsed("profile:a+b=c.json").file, "a+b=c.json") << "b is no setting";
}

TEST(AttentionName, SettingsOfItsOwnFollow) {
  const AttentionName name = Parsed(
      "profile:p.json+z=2+offset=-0.5+floor=none+pinned_blocks=0+sink_blocks=4+reads=shared"
      "+confirm=true+prefill_attention=sparse+special_keys=temper");
  EXPECT_EQ(name.file, "p.json");
  EXPECT_THAT(name.settings.attention.z, Optional(2.0f));
  EXPECT_THAT(name.settings.attention.offset, Optional(-0.5f));
  EXPECT_THAT(name.settings.attention.uniform_floor, Optional(false));
  EXPECT_THAT(name.settings.attention.pinned_blocks, Optional(0));
  EXPECT_THAT(name.settings.attention.sink_blocks, Optional(4));
  EXPECT_THAT(name.settings.attention.shared_reads, Optional(true));
  EXPECT_THAT(name.settings.attention.confirm, Optional(true));
  EXPECT_THAT(name.settings.attention.sparse_prefill, Optional(true));
  EXPECT_THAT(name.settings.attention.temper_special, Optional(true));
  EXPECT_THAT(Parsed("relative:-3+reads=own+reads=shared").settings.attention.shared_reads,
              Optional(true))
      << "the last one counts";
}

TEST(AttentionName, OwnSettingsGoBeforeOthers) {
  const AttentionSettings own = {.z = 1.0f};
  const AttentionSettings both = own.Or({.offset = 0.5f, .z = 2.0f});
  EXPECT_THAT(both.z, Optional(1.0f));
  EXPECT_THAT(both.offset, Optional(0.5f));
  EXPECT_TRUE(AsksOfSparseAttention(own));
  EXPECT_FALSE(AsksOfSparseAttention({.offset = 0.5f}));
}

// bad input: eta-eval | ways of attending, windows, shares, block sizes and settings that are none
//   | exit code 2, the setting named | BadTableTest.WaysOfAttendingWithNumbersThatAreNone
TEST(AttentionName, AnythingElseIsRefused) {
  for (const char* text : {"",
                           "Full",
                           "sparse",
                           "topk",
                           "topk:",
                           "topk:1.1",
                           "topk:-0.1",
                           "topk:nan",
                           "quest:0.1x",
                           "quest:0.1:",
                           "quest:0.1:-1",
                           "quest:0.1:2:3",
                           "oracle",
                           "oracle:1e9",
                           "constants",
                           "constants:inf",
                           "relative:",
                           "relative:x",
                           "profile:",
                           "profile",
                           "full:1",
                           "dynamic:2",
                           "window",
                           "window:",
                           "window:0",
                           "window:-1",
                           "streaming:x",
                           "bigbird:256",
                           "bigbird:256:0",
                           "bigbird::4",
                           "h2o:256",
                           "h2o:256:1.5",
                           "h2o:256:0.1:2",
                           "h2o_blocks:256"}) {
    EXPECT_EQ(GetErrorDetail(ParseAttentionName(text).status()).field, "attention") << text;
  }
  for (const auto& [text, field] : std::vector<std::pair<std::string, std::string>>{
           {"full+z=17", "z"},
           {"full+offset=nan", "offset"},
           {"full+floor=on", "floor"},
           {"full+pinned_blocks=-1", "pinned_blocks"},
           {"full+sink_blocks=1025", "sink_blocks"},
           {"full+reads=both", "reads"},
           {"dynamic+confirm=1", "confirm"},
           {"dynamic+confirm=perhaps", "confirm"},
           {"dynamic+prefill_attention=dense", "prefill_attention"},
           {"full+special_keys=", "special_keys"},
           {"dynamic+block_size=6", "block_size"},
           {"dynamic+block_size=256", "block_size"},
           {"dynamic+index=flat", "index"}}) {
    EXPECT_EQ(GetErrorDetail(ParseAttentionName(text).status()).field, field) << text;
  }
}

// What the command refuses for the model's sake.
class AttentionFlagsTest : public EvaluationTest {
 protected:
  static int Perplexity(const TinyModel& model, const std::string& flags) {
    return ExitCode("perplexity --backend=reference --kv_dtype=float32 --model=" + model.path() +
                    " --text=" ETA_SOURCE_DIR
                    "/deploy/samples/needle.txt --context=112 --prefill=64 --windows=1 " +
                    flags);
  }
};

// bad input: eta-eval | settings that the model or the way of attending does not have | exit code 2
TEST_F(AttentionFlagsTest, APlainModelTakesRelativeThresholdsAndRivals) {
  const TinyModel plain({.has_predictor = false});
  for (const char* way :
       {"dynamic", "relative:-3.2+reads=own", "dynamic+confirm=true",
        "dynamic+prefill_attention=sparse", "topk:0.25+sink_blocks=0", "quest:0.1", "oracle:-3.9",
        "constants:0.8", "window:40", "streaming:0.25", "bigbird:32:3", "h2o:32:0.2",
        "h2o_blocks:32:0.2", "quest:0.1:0", "bigbird:32:3+sink_blocks=1", "topk:0.25+index=moment",
        "relative+block_size=4", "window:16+block_size=4"}) {
    EXPECT_EQ(Perplexity(plain, std::string("--mass=0.5 --attention=") + way), 0) << way;
  }
  EXPECT_EQ(Perplexity(plain, "--attention=dynamic --index=moment"), 2);
  EXPECT_EQ(Perplexity(plain, "--attention=topk:0.25 --index=moment"), 0);
  EXPECT_EQ(Perplexity(plain, "--attention=dynamic --floor=uniform"), 2);
  EXPECT_EQ(Perplexity(plain, "--attention=full --special_keys=temper"), 2);
  EXPECT_EQ(Perplexity(plain, "--attention=constants:0.01"), 2) << "more is always read";
  EXPECT_EQ(Perplexity(plain, "--attention=full --sink_blocks=1"), 2);
  EXPECT_EQ(Perplexity(plain, "--attention=full+reads=own"), 2);
  EXPECT_EQ(Perplexity(plain, "--attention=full+confirm=true"), 2);
  EXPECT_EQ(Perplexity(plain, "--attention=full+prefill_attention=sparse"), 2);
  EXPECT_EQ(Perplexity(plain, "--attention=topk:0.25+prefill_attention=sparse"), 2);
  EXPECT_EQ(Perplexity(plain, "--attention=topk:0.25+confirm=true"), 2);
  EXPECT_EQ(Perplexity(plain, "--attention=dynamic --mass=1.5"), 2);
  EXPECT_EQ(Perplexity(plain, "--attention=dynamic --sink_blocks=x"), 2);
}

TEST_F(AttentionFlagsTest, AModelWithAGateTakesWhatHasNoNeedOfScores) {
  const TinyModel gated;
  for (const char* way :
       {"full+special_keys=temper", "dynamic+special_keys=temper+reads=shared", "topk:0.25",
        "quest:0.1", "h2o:32:0.2", "dynamic+block_size=4", "dynamic+index=outlier+block_size=32"}) {
    EXPECT_EQ(Perplexity(gated, std::string("--attention=") + way), 0) << way;
  }
  EXPECT_EQ(Perplexity(gated, "--attention=relative"), 2);
  EXPECT_EQ(Perplexity(gated, "--attention=oracle:-3.9"), 2);
  EXPECT_EQ(Perplexity(gated, "--attention=dynamic --index=outlier"), 0);
}

}  // namespace
}  // namespace eta
