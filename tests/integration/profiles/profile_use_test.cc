// Generate with profiles: named in every way, of one tenant only, and with a store in trouble.
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/net/http2_peer.h"
#include "tests/testing/process/call_records.h"
#include "tests/testing/service/calibrate_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

using ProfileUseTest = CalibrateTest;

TEST_F(ProfileUseTest, AProfileIsUsedByNameVersionAndAliasRightAfterItsAnswer) {
  v1::GenerateRequest generate = Ask("hello");
  generate.mutable_attention()->set_profile("legal");
  EXPECT_EQ(ReasonOf(ClientCall(*stub_).Refusal(generate)), "PROFILE_NOT_FOUND");
  ASSERT_TRUE(Calibrate(Request()).status.ok());
  ASSERT_TRUE(Calibrate(Request()).status.ok());
  v1::SetProfileAliasRequest alias;
  alias.set_name("legal");
  alias.set_alias("stable");
  alias.set_version(1);
  grpc::ClientContext context;
  v1::SetProfileAliasResponse response;
  ASSERT_TRUE(profile_stub_->SetProfileAlias(&context, alias, &response).ok());

  for (const auto& [reference, version] :
       {std::pair{"legal", 2}, std::pair{"legal@1", 1}, std::pair{"legal@stable", 1}}) {
    generate.mutable_attention()->set_profile(reference);
    ClientCall client(*stub_);
    client.Start(generate);
    const auto call = engine_->TakeCall();
    ASSERT_NE(call, nullptr);
    const auto record =
        store_->others().Get(TenantOf("default"), "legal", ProfileSelector(int64_t{version}));
    EXPECT_THAT(call->request().attention.profile->thresholds,
                ElementsAreArray((*record)->content.thresholds));
    call->Start();
    const v1::AttentionUsed used = client.Read().started().attention();
    EXPECT_EQ(used.mode(), v1::ATTENTION_MODE_PROFILE);
    EXPECT_EQ(used.profile(), "legal");
    EXPECT_EQ(used.profile_version(), version);
    call->Finish();
    client.ReadText();
    EXPECT_TRUE(client.Finish().ok());
  }
  for (const std::string reference : {"legal@3", "legal@next", "code"}) {
    generate.mutable_attention()->set_profile(reference);
    const grpc::Status status = ClientCall(*stub_).Refusal(generate);
    EXPECT_THAT(status, FailsWith(StatusCode::NOT_FOUND, "PROFILE_NOT_FOUND"));
    EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(status)->resource_name(), reference);
  }
  for (const std::string reference :
       {"legal@", "legal@0", "legal@-1", "legal@../x", "@1", "a@b@c"}) {
    generate.mutable_attention()->set_profile(reference);
    EXPECT_EQ(FieldOf(ClientCall(*stub_).Refusal(generate)), "attention.profile") << reference;
  }
}

TEST_F(ProfileUseTest, ARequestWithoutAModeTakesItsTenantsDefaultProfile) {
  ServerOptions options;
  options.default_profile = "default@stable";
  Serve(options);
  const auto mode_of = [&](const v1::GenerateRequest& request) {
    ClientCall client(*stub_);
    client.Start(request);
    const auto call = engine_->TakeAndStart();
    const v1::AttentionUsed used = client.Read().started().attention();
    call->Finish();
    client.ReadText();
    EXPECT_TRUE(client.Finish().ok());
    return used.mode();
  };
  EXPECT_EQ(mode_of(Ask("hello")), v1::ATTENTION_MODE_DYNAMIC) << "the tenant has none";
  ASSERT_TRUE(Calibrate(Request("default")).status.ok());
  v1::SetProfileAliasRequest alias;
  alias.set_name("default");
  alias.set_alias("stable");
  alias.set_version(1);
  grpc::ClientContext context;
  v1::SetProfileAliasResponse response;
  ASSERT_TRUE(profile_stub_->SetProfileAlias(&context, alias, &response).ok());
  EXPECT_EQ(mode_of(Ask("hello")), v1::ATTENTION_MODE_PROFILE);
  v1::GenerateRequest full = Ask("hello");
  full.mutable_attention()->mutable_full();
  EXPECT_EQ(mode_of(full), v1::ATTENTION_MODE_FULL);
}

TEST_F(ProfileUseTest, TenantsAreNamedByAHeaderAndSeeTheirOwn) {
  ServerOptions options;
  options.tenant_header = kTenantHeader;
  Serve(options);
  ASSERT_TRUE(Calibrate(Request(), "acme").status.ok());
  EXPECT_EQ(StoredVersion("legal", "acme"), 1);
  const auto generate = [this](const std::string& profile, const std::string& tenant) {
    v1::GenerateRequest request = Ask("hello");
    request.mutable_attention()->set_profile(profile);
    ClientCall client(*stub_);
    if (!tenant.empty()) client.context.AddMetadata(kTenantHeader, tenant);
    return client.Refusal(request);
  };
  const grpc::Status foreign = generate("legal", "other");
  const grpc::Status unknown = generate("legal", "nobody");
  EXPECT_EQ(foreign.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(foreign.error_message(), unknown.error_message());
  EXPECT_EQ(foreign.error_details(), unknown.error_details());

  for (const std::string& bad : {std::string(), std::string("two words"), std::string(256, 'x')}) {
    EXPECT_THAT(generate("legal", bad), FailsWith(StatusCode::UNAUTHENTICATED, "TENANT_REQUIRED"));
  }
  ClientCall twice(*stub_);
  twice.context.AddMetadata(kTenantHeader, "acme");
  twice.context.AddMetadata(kTenantHeader, "other");
  EXPECT_EQ(ReasonOf(twice.Refusal(Ask("hello"))), "TENANT_REQUIRED");

  ClientCall own(*stub_);
  own.context.AddMetadata(kTenantHeader, "acme");
  v1::GenerateRequest request = Ask("hello");
  request.mutable_attention()->set_profile("legal");
  own.Start(request);
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->request().tenant, "acme");
  call->Start();
  call->Finish();
  own.ReadText();
  EXPECT_TRUE(own.Finish().ok());
}

TEST_F(ProfileUseTest, GenerateGoesOnWithAStoreThatIsDown) {
  ASSERT_TRUE(Calibrate(Request()).status.ok());
  store_->Fail(MakeError(absl::StatusCode::kUnavailable, "the profile store cannot be reached",
                         {.reason = "STORE_UNAVAILABLE", .retry_after = seconds(1)}));
  v1::GenerateRequest request = Ask("hello");
  request.mutable_attention()->set_profile("legal");
  ClientCall client(*stub_);
  client.Start(request);
  const auto call = engine_->TakeAndStart();
  call->Finish();
  client.ReadText();
  EXPECT_TRUE(client.Finish().ok());
  request.mutable_attention()->set_profile("never-loaded");
  const grpc::Status status = ClientCall(*stub_).Refusal(request);
  EXPECT_THAT(status, FailsWith(StatusCode::UNAVAILABLE, "STORE_UNAVAILABLE"));
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(status).has_value());
}

TEST_F(ProfileUseTest, ACallThatWaitsForTheStoreCanBeCancelledAndEndsWithTheServer) {
  store_->Block();
  v1::GenerateRequest request = Ask("hello");
  request.mutable_attention()->set_profile("legal");
  ClientCall left(*stub_);
  left.Start(request);
  left.context.TryCancel();
  EXPECT_EQ(left.Finish().error_code(), StatusCode::CANCELLED);
  ClientCall waits(*stub_);
  waits.Start(request);
  while (store_->waiting() == 0) std::this_thread::sleep_for(milliseconds(1));
  std::thread stop([this] { server_.reset(); });
  // What gRPC ends without a drain is cancelled, or sees that its connection is gone.
  EXPECT_THAT(waits.Finish().error_code(), AnyOf(StatusCode::UNAVAILABLE, StatusCode::CANCELLED));
  store_->Release();
  stop.join();
  Serve();
}

TEST_F(ProfileUseTest, ACallThatWaitsForTheStoreEndsWithItsClientAndNotWithTheStore) {
  CallRecords records;
  call_observers_ = {&records};
  ASSERT_TRUE(Calibrate(Request()).status.ok());
  Serve();  // with an empty cache
  store_->Block();
  v1::GenerateRequest request = Ask("hello");
  request.mutable_attention()->set_profile("legal");
  const auto ends = [&records] {
    std::vector<std::string> reasons;
    for (const CallRecord& record : records.All()) {
      if (record.method == "Generate") reasons.push_back(record.reason);
    }
    return reasons;
  };
  const auto calls_of_tenant = [this] {
    grpc::ClientContext context;
    v1::Stats stats;
    EXPECT_TRUE(
        v1::EtaService::NewStub(channel_)->Stats(&context, v1::StatsRequest(), &stats).ok());
    return stats.uses_size() > 0 ? stats.uses(0).calls() : 0;
  };
  ClientCall leaves(*stub_);
  leaves.Start(request);
  while (calls_of_tenant() == 0) std::this_thread::sleep_for(milliseconds(1));
  leaves.context.TryCancel();
  EXPECT_EQ(leaves.Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return ends().size() == 1; })) << "it waits for the store";
  Http2Peer late(server_->address());
  ASSERT_TRUE(late.connected());
  late.Call(1, kGenerateMethod, {{"grpc-timeout", "500m"}});
  late.Message(1, request.SerializeAsString(), /*end_stream=*/true);
  EXPECT_TRUE(Eventually([&] { return ends().size() == 2; })) << "it waits for the store";
  EXPECT_THAT(ends(), ElementsAre("CLIENT_CANCELLED", "DEADLINE_QUEUED"));
  EXPECT_EQ(calls_of_tenant(), 0);

  ClientCall waits(*stub_);
  waits.Start(request);
  while (calls_of_tenant() == 0) std::this_thread::sleep_for(milliseconds(1));
  store_->Release();
  const auto call = engine_->TakeAndStart();
  call->Finish();
  waits.ReadText();
  EXPECT_TRUE(waits.Finish().ok());
  EXPECT_EQ(engine_->submissions(), 1) << "those that ended are not begun";
  server_.reset();  // so that no call ends later
  EXPECT_EQ(ends().size(), 3u) << "each once";
  call_observers_.clear();
  Serve();
}

}  // namespace
}  // namespace eta::testing
