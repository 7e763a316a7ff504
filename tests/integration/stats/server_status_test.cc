// How a server stands, as its page and its statistics tell it.
#include <thread>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/service/service_fixture.h"

namespace eta::testing {
namespace {

using ::testing::SizeIs;

class ServerStatusTest : public ServiceTest {
 protected:
  void SetUp() override {
    store_ = std::make_unique<FaultyStore>();
    Serve();
  }
  v1::GenerateRequest AskUnder(const std::string& profile) {
    v1::GenerateRequest request = Ask("x");
    request.mutable_attention()->set_profile(profile);
    return request;
  }
};

TEST_F(ServerStatusTest, WithoutAStoreNothingIsSaidOfOne) {
  StopServing();
  store_.reset();
  Serve();
  EXPECT_FALSE(server_->Status().store);
}

TEST_F(ServerStatusTest, ProfilesAreThoseInMemoryWithWhatTheirCalibrationMeasured) {
  const Tenant tenant = Tenant::Parse("default").value();
  ProfileContent content = FittingContent(3);
  content.evidence.held_out_sequences = 4;
  const auto stored = store_->others().Put(tenant, {.name = "legal", .content = content}).value();
  ASSERT_TRUE(server_->Status().store);
  EXPECT_THAT(server_->Status().profiles, SizeIs(0));
  EXPECT_FALSE(server_->Status().store->cache.last_read);

  ClientCall client(*stub_);
  client.Start(AskUnder("legal"));
  const auto call = engine_->TakeAndStart();
  call->Finish();
  client.ReadText();
  EXPECT_TRUE(client.Finish().ok());

  const ServerStatus status = server_->Status();
  ASSERT_THAT(status.profiles, SizeIs(1));
  EXPECT_EQ(status.profiles[0].tenant.id(), "default");
  EXPECT_EQ(status.profiles[0].name, "legal");
  EXPECT_EQ(status.profiles[0].version, stored->version);
  EXPECT_EQ(status.profiles[0].checksum, stored->checksum);
  EXPECT_EQ(status.profiles[0].head_density, content.evidence.head_density);
  EXPECT_EQ(status.profiles[0].union_density, content.evidence.union_density);
  EXPECT_TRUE(status.store->up);
  EXPECT_EQ(status.store->cache.reads, 1);
  EXPECT_EQ(status.store->cache.failed_reads, 0);
  EXPECT_GT(status.store->cache.bytes, 0);
  ASSERT_TRUE(status.store->cache.last_read && status.store->cache.oldest);
  EXPECT_LE(*status.store->cache.oldest, *status.store->cache.last_read);
}

TEST_F(ServerStatusTest, ReadsThatFailAreCountedAndThoseThatFindNothingAreNoFailures) {
  EXPECT_FALSE(ClientCall(*stub_).Refusal(AskUnder("nowhere")).ok());
  EXPECT_EQ(server_->Status().store->cache.reads, 1);
  store_->Fail(MakeError(absl::StatusCode::kUnavailable, "down", {.reason = "STORE_UNAVAILABLE"}));
  EXPECT_FALSE(ClientCall(*stub_).Refusal(AskUnder("another")).ok());
  const StoreStatus store = *server_->Status().store;
  EXPECT_EQ(store.cache.failed_reads, 1);
  EXPECT_FALSE(store.cache.oldest) << "no profile, nothing that is stale";
}

TEST_F(ServerStatusTest, TheStateFollowsTheServer) {
  EXPECT_EQ(server_->Status().state, ServerState::kServing);
  EXPECT_EQ(server_->Status().devices.size(), 1u);
  EXPECT_EQ(server_->Status().info.model_name, "puppet");
  server_->Drain();
  EXPECT_EQ(server_->Status().state, ServerState::kDraining);
}

}  // namespace
}  // namespace eta::testing
