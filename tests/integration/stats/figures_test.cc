// How a server stands, as its Prometheus page tells it.
#include <thread>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/service/service_fixture.h"

namespace eta::testing {
namespace {

using ::testing::SizeIs;

class FiguresTest : public ServiceTest {
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

TEST_F(FiguresTest, WithoutAStoreNothingIsSaidOfOne) {
  StopServing();
  store_.reset();
  Serve();
  EXPECT_FALSE(server_->Figures().store);
}

TEST_F(FiguresTest, ProfilesAreThoseInMemoryWithWhatTheirCalibrationMeasured) {
  const Tenant tenant = Tenant::Parse("default").value();
  ProfileContent content = FittingContent(3);
  content.evidence.held_out_sequences = 4;
  const auto stored = store_->others().Put(tenant, {.name = "legal", .content = content});
  ASSERT_TRUE(stored.ok()) << stored.status();
  ASSERT_TRUE(server_->Figures().store);
  EXPECT_THAT(server_->Figures().store->profiles, SizeIs(0));
  EXPECT_FALSE(server_->Figures().store->last_reload_age);

  ClientCall client(*stub_);
  client.Start(AskUnder("legal"));
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr);
  call->Start();
  call->Finish();
  client.ReadText();
  EXPECT_TRUE(client.Finish().ok());

  const StoreFigures figures = *server_->Figures().store;
  ASSERT_THAT(figures.profiles, SizeIs(1));
  EXPECT_EQ(figures.profiles[0].tenant, "default");
  EXPECT_EQ(figures.profiles[0].name, "legal");
  EXPECT_EQ(figures.profiles[0].version, (*stored)->version);
  EXPECT_EQ(figures.profiles[0].digest, (*stored)->checksum);
  EXPECT_EQ(figures.profiles[0].head_density, content.evidence.head_density);
  EXPECT_EQ(figures.profiles[0].union_density, content.evidence.union_density);
  EXPECT_TRUE(figures.up);
  EXPECT_EQ(figures.reloads_succeeded, 1);
  EXPECT_EQ(figures.reloads_failed, 0);
  EXPECT_GT(figures.cache_bytes, 0);
  ASSERT_TRUE(figures.last_reload_age);
  EXPECT_GE(figures.staleness.count(), figures.last_reload_age->count());
}

TEST_F(FiguresTest, ReadsThatFailAreCountedAndThoseThatFindNothingAreNoFailures) {
  EXPECT_FALSE(ClientCall(*stub_).Refusal(AskUnder("nowhere")).ok());
  EXPECT_EQ(server_->Figures().store->reloads_succeeded, 1);
  store_->Fail(MakeError(absl::StatusCode::kUnavailable, "down", {.reason = "STORE_UNAVAILABLE"}));
  EXPECT_FALSE(ClientCall(*stub_).Refusal(AskUnder("another")).ok());
  const StoreFigures figures = *server_->Figures().store;
  EXPECT_EQ(figures.reloads_failed, 1);
  EXPECT_EQ(figures.staleness.count(), 0);
}

TEST_F(FiguresTest, TheStateFollowsTheServer) {
  EXPECT_EQ(server_->Figures().state, ServerState::kServing);
  EXPECT_EQ(server_->Figures().devices.size(), 1u);
  EXPECT_EQ(server_->Figures().info.model_name, "puppet");
  server_->Drain();
  EXPECT_EQ(server_->Figures().state, ServerState::kDraining);
}

}  // namespace
}  // namespace eta::testing
