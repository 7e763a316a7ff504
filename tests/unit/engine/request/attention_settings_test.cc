// The one table of what may be asked of attention.
#include "engine/request/attention_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>

#include "engine/base/error.h"

namespace eta {
namespace {

AttentionSettings All() {
  return {.offset = -1.0f,
          .z = 2.0f,
          .uniform_floor = false,
          .pinned_blocks = 2,
          .sink_blocks = 1,
          .shared_reads = true,
          .confirm = false,
          .sparse_prefill = true,
          .temper_special = false,
          .min_mass = 0.5f};
}

TEST(AttentionSettings, EveryFieldIsInTheTableOnce) {
  std::set<std::string> names;
  int there = 0;
  const AttentionSettings all = All();
  AttentionSettings copied;
  ForEachSetting([&](const AttentionField& field, auto member) {
    names.insert(field.name);
    there += (all.*member).has_value() ? 1 : 0;
    copied.*member = all.*member;
  });
  EXPECT_EQ(names.size(), 10u);
  EXPECT_EQ(there, 10);
  EXPECT_EQ(copied, all) << "a field that is not in the table is lost on every way";
}

TEST(AttentionSettings, OrTakesTheOthersWhereOneIsAbsent) {
  EXPECT_EQ(AttentionSettings{}.Or(All()), All());
  const AttentionSettings own = {.z = 1.0f, .confirm = true};
  const AttentionSettings both = own.Or(All());
  EXPECT_EQ(both.z, 1.0f);
  EXPECT_EQ(both.confirm, true);
  EXPECT_EQ(both.offset, -1.0f);
}

TEST(AttentionSettings, NumbersHaveBounds) {
  const auto field = [](const AttentionSettings& settings) {
    const absl::Status status = CheckBounds("attention.", settings);
    return status.ok() ? std::string("ok") : GetErrorDetail(status).field;
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(field(All()), "ok");
  EXPECT_EQ(field({.offset = 100.5f}), "attention.offset");
  EXPECT_EQ(field({.offset = kNan}), "attention.offset");
  EXPECT_EQ(field({.z = -0.5f}), "attention.z");
  EXPECT_EQ(field({.pinned_blocks = 1025}), "attention.pinned_blocks");
  EXPECT_EQ(field({.sink_blocks = -1}), "attention.sink_blocks");
  EXPECT_EQ(field({.min_mass = 0.0f}), "attention.min_mass");
  EXPECT_EQ(field({.min_mass = kNan}), "attention.min_mass");
  EXPECT_EQ(field({.min_mass = 1.0f}), "ok");
}

TEST(AttentionSettings, SomeChoicesNeedAGate) {
  const auto reason = [](const AttentionSettings& settings) {
    return GetErrorDetail(RefuseGated("", settings)).reason;
  };
  EXPECT_EQ(reason(All()), "");
  EXPECT_EQ(reason({.uniform_floor = true}), "UNSUPPORTED_BY_MODEL");
  EXPECT_EQ(reason({.temper_special = true}), "UNSUPPORTED_BY_MODEL");
}

TEST(AttentionSettings, FullAttentionReadsTwoOfThem) {
  EXPECT_FALSE(AsksOfSparseAttention({.offset = 1.0f, .temper_special = true}));
  EXPECT_TRUE(AsksOfSparseAttention({.confirm = false}));
}

TEST(AttentionSettings, ReadAsWords) {
  EXPECT_EQ(Describe(All()),
            "offset -1, z 2, floor none, pinned_blocks 2, sink_blocks 1, reads shared, confirm "
            "false, prefill sparse, special_keys attend, min_mass 0.5");
  EXPECT_EQ(Describe(All(), /*unusual=*/true),
            "sink_blocks 1, reads shared, prefill sparse, min_mass 0.5");
  EXPECT_EQ(Describe({}), "");
}

}  // namespace
}  // namespace eta
