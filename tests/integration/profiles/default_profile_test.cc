// Requests that name no attention mode, where the server has a default profile: none fails for it,
// and what each got of it is told.
#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/process/call_records.h"
#include "tests/testing/service/calibrate_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;
using ::testing::Optional;

absl::Status Down() {
  return MakeError(absl::StatusCode::kUnavailable, "the profile store cannot be reached",
                   {.reason = "STORE_UNAVAILABLE", .retry_after = std::chrono::seconds(1)});
}

class DefaultProfileTest : public CalibrateTest {
 protected:
  void SetUp() override {
    call_observers_ = {&records_};
    log_fd_ = open(log_path_.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    own_log_.emplace(LogOptions{.fd = log_fd_});
    log_ = &*own_log_;
    CalibrateTest::SetUp();
  }
  void TearDown() override {
    CalibrateTest::TearDown();
    own_log_.reset();
    close(log_fd_);
  }

  void ServeWithDefault(const std::string& profile = "legal") {
    ServerOptions options;
    options.default_profile = profile;
    Serve(options);
  }
  // What a request got, from its first message.
  v1::AttentionUsed Used(const v1::GenerateRequest& request) {
    records_.Clear();
    ClientCall client(*stub_);
    client.Start(request);
    const auto call = engine_->TakeCall();
    if (call == nullptr) {
      ADD_FAILURE() << client.Finish().error_message();
      return {};
    }
    call->Start();
    const v1::AttentionUsed used = client.Read().started().attention();
    call->Finish();
    client.ReadText();
    EXPECT_TRUE(client.Finish().ok());
    return used;
  }
  void ExpectWithout(v1::DefaultProfileMiss miss, DefaultProfileUse use) {
    const v1::AttentionUsed used = Used(Ask("hello"));
    EXPECT_EQ(used.mode(), v1::ATTENTION_MODE_DYNAMIC);
    EXPECT_TRUE(used.has_default_profile_miss());
    EXPECT_EQ(used.default_profile_miss(), miss) << v1::DefaultProfileMiss_Name(miss);
    EXPECT_THAT(records_.Last().default_profile, Optional(use));
    EXPECT_EQ(records_.Last().mode, AttentionMode::kDynamic);
  }
  void ExpectWith() {
    const v1::AttentionUsed used = Used(Ask("hello"));
    EXPECT_EQ(used.mode(), v1::ATTENTION_MODE_PROFILE);
    EXPECT_FALSE(used.has_default_profile_miss());
    EXPECT_THAT(records_.Last().default_profile, Optional(DefaultProfileUse::kUsed));
  }
  bool AwaitLog(const std::string& text) {
    return Eventually([&] { return ReadFile(log_path_).find(text) != std::string::npos; });
  }

  CallRecords records_;
  const TempFolder folder_;
  const std::string log_path_ = folder_.path() + "/log";
  int log_fd_ = -1;
  std::optional<Log> own_log_;
};

// bad input: Store | down, for a request that names no mode | it goes on without the default
//   profile, and says so
TEST_F(DefaultProfileTest, TroubleOfTheStoreStopsNoRequestThatNamesNoMode) {
  for (const absl::Status& trouble :
       {Down(), MakeError(absl::StatusCode::kDataLoss, "damaged", {.reason = "PROFILE_CORRUPT"}),
        MakeError(absl::StatusCode::kInternal, "disk", {.reason = "STORE_IO_ERROR"})}) {
    store_->Fail(trouble);
    ServeWithDefault();
    ExpectWithout(v1::DEFAULT_PROFILE_MISS_UNAVAILABLE, DefaultProfileUse::kUnavailable);
    v1::GenerateRequest named = Ask("hello");
    named.mutable_attention()->set_profile("legal");
    EXPECT_EQ(ClientCall(*stub_).Refusal(named).error_code(),
              static_cast<StatusCode>(trouble.code()))
        << "who names it is told";
    store_->Fail(absl::OkStatus());
  }
  ServeWithDefault();
  ASSERT_TRUE(Calibrate(Request("legal")).status.ok());
  ExpectWith();
}

TEST_F(DefaultProfileTest, AStoreThatHangsHoldsNoRequestForLong) {
  store_->Block();
  ServeWithDefault();
  ExpectWithout(v1::DEFAULT_PROFILE_MISS_UNAVAILABLE, DefaultProfileUse::kUnavailable);
  ExpectWithout(v1::DEFAULT_PROFILE_MISS_UNAVAILABLE, DefaultProfileUse::kUnavailable);
  store_->Release();
}

TEST_F(DefaultProfileTest, ATenantWithoutOneAndAnotherModelsAreToldApart) {
  ServeWithDefault();
  ExpectWithout(v1::DEFAULT_PROFILE_MISS_ABSENT, DefaultProfileUse::kAbsent);
  ProfileContent content = FittingContent(1);
  content.model_fingerprint = std::string(64, 'f');
  ASSERT_TRUE(store_->others()
                  .Put(TenantOf("default"), {.name = "legal", .content = std::move(content)})
                  .ok());
  store_->Tell({.tenant = TenantOf("default"), .name = "legal"});
  ExpectWithout(v1::DEFAULT_PROFILE_MISS_UNFIT, DefaultProfileUse::kUnfit);
  v1::GenerateRequest named = Ask("hello");
  named.mutable_attention()->set_profile("legal");
  EXPECT_EQ(ReasonOf(ClientCall(*stub_).Refusal(named)), "PROFILE_MISMATCH");
}

TEST_F(DefaultProfileTest, RequestsThatNameAModeHaveNothingToDoWithIt) {
  store_->Fail(Down());
  ServeWithDefault();
  v1::GenerateRequest full = Ask("hello");
  full.mutable_attention()->mutable_full();
  EXPECT_FALSE(Used(full).has_default_profile_miss());
  EXPECT_FALSE(records_.Last().default_profile.has_value());
}

TEST_F(DefaultProfileTest, StatsSaysForHowManyTenantsItIsThere) {
  const auto tenants = [this] {
    grpc::ClientContext context;
    v1::Stats stats;
    EXPECT_TRUE(stub_->Stats(&context, v1::StatsRequest(), &stats).ok());
    return stats.has_default_profile() ? stats.default_profile().tenants() : -1;
  };
  EXPECT_EQ(tenants(), -1) << "the server has no default profile";
  ASSERT_TRUE(Calibrate(Request("legal")).status.ok());
  ServeWithDefault();
  ExpectWith();
  EXPECT_EQ(tenants(), 1);
  ServeWithDefault("code");
  ExpectWithout(v1::DEFAULT_PROFILE_MISS_ABSENT, DefaultProfileUse::kAbsent);
  EXPECT_EQ(tenants(), 0);
}

TEST_F(DefaultProfileTest, TheStartSaysWhoHasIt) {
  ServeWithDefault("nowhere");
  EXPECT_TRUE(AwaitLog("no tenant that is known has the default profile nowhere"));
  ASSERT_TRUE(Calibrate(Request("legal")).status.ok());
  ServeWithDefault();
  EXPECT_TRUE(AwaitLog("the default profile legal is there for 1 of 1 tenants"));
  store_->Fail(Down());
  ServeWithDefault("unasked");
  EXPECT_TRUE(AwaitLog("who has the default profile unasked cannot be told"));
}

}  // namespace
}  // namespace eta::testing
