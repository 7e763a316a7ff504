#include "service/limits/limits_file.h"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "service/limits/tenant_limits.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta {
namespace {

using ::testing::StartsWith;

TEST(LimitsFile, SaysNothingSoNobodyHasBoundsButOfProfiles) {
  for (const char* text : {"{}", R"({"default": {}})", R"({"tenants": {}})"}) {
    const auto table = ParseLimits(text).value();
    EXPECT_EQ(table.others.max_calls, 0);
    EXPECT_EQ(table.others.tokens_per_second, 0.0);
    EXPECT_EQ(table.others.weight, 1.0);
    EXPECT_EQ(table.others.max_calibrations, 0);
    EXPECT_EQ(table.others.profiles.versions, 1000);
    EXPECT_EQ(table.others.profiles.bytes, 256 << 20);
    EXPECT_TRUE(table.named.empty());
  }
}

TEST(LimitsFile, ATenantHasWhatTheDefaultSaysAndItsOwn) {
  const auto table = ParseLimits(R"({
    "default": {"max_calls": 8, "tokens_per_second": 100, "burst_tokens": 5000, "weight": 2,
                "max_kv_tokens": 4096, "max_calibrations": 1, "profile_versions": 10,
                "profile_bytes": 1000000},
    "tenants": {"acme": {"max_calls": 64, "tokens_per_second": 0.5},
                "free": {"tokens_per_second": 0}}
  })");
  ASSERT_TRUE(table.ok()) << table.status();
  const TenantLimit& acme = table->named.at("acme");
  EXPECT_EQ(acme.max_calls, 64);
  EXPECT_EQ(acme.tokens_per_second, 0.5);
  EXPECT_EQ(acme.burst_tokens, 5000);
  EXPECT_EQ(acme.weight, 2.0);
  EXPECT_EQ(acme.max_kv_tokens, 4096);
  EXPECT_EQ(acme.max_calibrations, 1);
  EXPECT_EQ(acme.profiles.versions, 10);
  EXPECT_EQ(acme.profiles.bytes, 1'000'000);
  EXPECT_EQ(table->named.at("free").tokens_per_second, 0.0);
  EXPECT_EQ(table->named.at("free").max_calls, 8);
}

TEST(LimitsFile, WithoutABurstAMinuteOfTheRateIsIt) {
  const auto table =
      ParseLimits(
          R"({"default": {"tokens_per_second": 10}, "tenants": {"a": {"tokens_per_second": 0.25}}})")
          .value();
  EXPECT_EQ(table.others.burst_tokens, 600);
  EXPECT_EQ(table.named.at("a").burst_tokens, 15);
}

TEST(LimitsFile, RefusesWhatItDoesNotKnowAndSaysWhere) {
  const std::pair<const char*, const char*> kBad[] = {
      {"", "tenants file"},
      {"[]", "tenants file"},
      {"{", "tenants file"},
      {R"({"default": {"max_calls": 1, "max_calls": 2}})", "'max_calls': is there twice"},
      {R"({"defaults": {}})", "'defaults': is unknown"},
      {R"({"default": []})", "default: must be an object"},
      {R"({"default": {"max_call": 1}})", "default.'max_call': is unknown"},
      {R"({"tenants": {"acme": {"wieght": 1}}})", "tenants.acme.'wieght': is unknown"},
      {R"({"tenants": {"acme": 3}})", "tenants.acme: must be an object"},
      {R"({"tenants": {"a b": {}}})", "tenants.'a b': must be a name"},
      {R"({"tenants": {"": {}}})", "tenants.'': must be a name"},
      {R"({"default": {"max_calls": -1}})", "default.max_calls: must be an integer"},
      {R"({"default": {"max_calls": 1.5}})", "default.max_calls: must be an integer"},
      {R"({"default": {"max_calls": "8"}})", "default.max_calls: must be an integer"},
      {R"({"default": {"max_calls": 99999999999999999999}})", "default.max_calls: must be"},
      {R"({"default": {"weight": 0}})", "default.weight: must be 0.01 to 100"},
      {R"({"default": {"weight": 1e9}})", "default.weight: must be"},
      {R"({"default": {"tokens_per_second": -1}})", "default.tokens_per_second: must be 0 or"},
      {R"({"default": {"tokens_per_second": 1e400}})", "tenants file"},
      {R"({"default": {"burst_tokens": 10}})", "default.burst_tokens: needs tokens_per_second"},
      {R"({"default": {"tokens_per_second": 1, "burst_tokens": 0}})", "default.burst_tokens: must"},
      {R"({"tenants": {"a": {"max_calls": {"b": {}}}}})", "tenants file"},
  };
  for (const auto& [text, error] : kBad) {
    const auto table = ParseLimits(text);
    ASSERT_FALSE(table.ok()) << text;
    EXPECT_TRUE(absl::IsInvalidArgument(table.status())) << text;
    EXPECT_THAT(std::string(table.status().message()), StartsWith(error)) << text;
  }
}

TEST(LimitsFile, IsBounded) {
  std::string text = R"({"tenants": {)";
  for (size_t i = 0; i <= kMaxLimitedTenants; ++i) {
    text += (i == 0 ? "\"t" : ",\"t") + std::to_string(i) + "\":{}";
  }
  text += "}}";
  EXPECT_THAT(std::string(ParseLimits(text).status().message()),
              StartsWith("tenants: must be at most 10000"));
  const std::string padding(kMaxLimitsBytes, ' ');
  EXPECT_FALSE(ParseLimits("{" + padding + "}").ok());
}

TEST(TenantLimits, AFileThatIsReplacedTakesEffectAndABadOneDoesNot) {
  const TempFolder folder;
  const std::string path = folder.Write("tenants.json", R"({"default": {"max_calls": 1}})");
  std::vector<absl::Status> reports;
  std::mutex mutex;
  auto limits = TenantLimits::Open(path, [&](const absl::Status& status) {
    const std::lock_guard lock(mutex);
    reports.push_back(status);
  });
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_EQ((*limits)->Of(TenantOf("a")).max_calls, 1);
  EXPECT_FALSE((*limits)->Names(TenantOf("a")));

  folder.Write("tenants.json", R"({"default": {"max_calls": 2}, "tenants": {"a": {"weight": 3}}})");
  (*limits)->Poll();
  EXPECT_EQ((*limits)->Of(TenantOf("a")).max_calls, 2);
  EXPECT_EQ((*limits)->Of(TenantOf("a")).weight, 3.0);
  EXPECT_EQ((*limits)->Of(TenantOf("b")).weight, 1.0);
  EXPECT_TRUE((*limits)->Names(TenantOf("a")));

  folder.Write("tenants.json", R"({"default": {"max_calls": 3, "oops": 1}})");
  (*limits)->Poll();
  EXPECT_EQ((*limits)->Of(TenantOf("a")).max_calls, 2) << "the last good one holds";
  const std::lock_guard lock(mutex);
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_TRUE(reports[0].ok());
  EXPECT_EQ(reports[1].message(), "--tenants: default.'oops': is unknown");
}

TEST(TenantLimits, AFileThatCannotBeUsedAtTheStartIsAnError) {
  const TempFolder folder;
  const auto bad = TenantLimits::Open(folder.Write("t", "nonsense"), nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(bad.status()));
  EXPECT_THAT(std::string(bad.status().message()), StartsWith("--tenants: "));
  EXPECT_FALSE(TenantLimits::Open(folder.path() + "/missing", nullptr).ok());
}

}  // namespace
}  // namespace eta
