// A gateway that subscribes to what the prefix cache holds; the test plays the step thread.
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/batching/kv_events/kv_event_feed.h"
#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/service/gateway_fixture.h"
#include "tests/testing/service/identity_fixture.h"

namespace eta::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A SubscribeKvEvents call from the gateway's side.
class EventsCall {
 public:
  EventsCall(const std::shared_ptr<grpc::Channel>& channel, uint64_t start,
             const std::string& key = "")
      : stub_(gateway_pb::VllmEngine::NewStub(channel)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (!key.empty()) context_.AddMetadata("authorization", "Bearer " + key);
    ::smg::grpc::common::SubscribeKvEventsRequest request;
    request.set_start_sequence_number(start);
    request.set_load_records_before_first_batch(true);
    reader_ = stub_->SubscribeKvEvents(&context_, request);
  }
  void AwaitInitialMetadata() { reader_->WaitForInitialMetadata(); }
  // Nothing: the call has ended.
  std::optional<::smg::grpc::common::KvEventBatch> Read() {
    ::smg::grpc::common::KvEventBatch batch;
    return reader_->Read(&batch) ? std::optional(batch) : std::nullopt;
  }
  grpc::Status Finish() { return reader_->Finish(); }
  // The status of a call without messages.
  grpc::Status Refusal() {
    EXPECT_FALSE(Read().has_value());
    return Finish();
  }

 private:
  const std::unique_ptr<gateway_pb::VllmEngine::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<::smg::grpc::common::KvEventBatch>> reader_;
};

KvEventLog::Change Stored(int64_t hash, std::optional<int64_t> parent, size_t tokens = 2) {
  auto block = std::make_shared<KvBlock>();
  block->hash = hash;
  block->parent = parent;
  block->tokens.assign(tokens, static_cast<int32_t>(hash));
  return {.kind = KvEvent::Kind::kStored, .hash = hash, .block = std::move(block)};
}
KvEventLog::Change Removed(int64_t hash) {
  return {.kind = KvEvent::Kind::kRemoved, .hash = hash, .block = nullptr};
}

class GatewayEventsTest : public IdentityTest {
 protected:
  void SetUp() override {
    IdentityTest::SetUp();
    kv_events_ = &feed_;
  }
  // Without identities: gateways are operators.
  void ServeGateways() {
    ServerOptions options;
    options.vllm_listen = {"127.0.0.1:0"};
    Serve(options);
  }
  std::shared_ptr<grpc::Channel> Gateway() {
    return OwnConnection(server_->vllm_listeners().at(0)->address());
  }
  void Append(std::vector<KvEventLog::Change> changes) { feed_.log()->Append(changes); }

  KvEventFeed feed_;
};

TEST_F(GatewayEventsTest, ASubscriberGetsWhatIsThereAndThenWhatChanges) {
  ServeGateways();
  Append({Stored(-5, std::nullopt), Stored(6, -5)});
  Append({Stored(7, 6)});
  EventsCall call(Gateway(), 0);
  const auto snapshot = call.Read();
  ASSERT_TRUE(snapshot);
  EXPECT_EQ(snapshot->sequence_number(), 2u);
  EXPECT_EQ(snapshot->snapshot().count(), 1u);
  EXPECT_EQ(snapshot->snapshot().blocks(), 3u);
  EXPECT_FALSE(snapshot->has_load());
  std::set<int64_t> told;
  for (const auto& event : snapshot->events()) {
    for (const auto& block : event.stored().blocks()) told.insert(block.block_hash());
  }
  EXPECT_EQ(told, (std::set<int64_t>{-5, 6, 7}));

  Append({Removed(7), Stored(8, 6), Stored(9, 8)});
  const auto change = call.Read();
  ASSERT_TRUE(change);
  EXPECT_EQ(change->sequence_number(), 3u);
  EXPECT_FALSE(change->has_snapshot());
  EXPECT_GT(change->timestamp(), 1.5e9);
  ASSERT_EQ(change->events_size(), 2);
  EXPECT_THAT(change->events(0).removed().block_hashes(), ElementsAre(7));
  const auto& stored = change->events(1).stored();
  EXPECT_EQ(stored.parent_block_hash(), 6);
  ASSERT_EQ(stored.blocks_size(), 2);
  EXPECT_EQ(stored.blocks(1).block_hash(), 9);
  EXPECT_EQ(stored.blocks(1).block_size(), 2);
  EXPECT_THAT(stored.blocks(1).token_ids(), ElementsAre(9, 9));
  EXPECT_EQ(stored.tier(), ::smg::grpc::common::KV_CACHE_TIER_DEVICE);

  EventsCall again(Gateway(), 3);
  EXPECT_EQ(again.Read()->sequence_number(), 3u) << "it goes on where it was";
  EventsCall stale(Gateway(), 77);
  const auto anew = stale.Read();
  ASSERT_TRUE(anew);
  EXPECT_TRUE(anew->events(0).has_cleared()) << "it knew another process";
  EXPECT_EQ(anew->snapshot().blocks(), 4u);
}

TEST_F(GatewayEventsTest, ABlockIsToldInEachGroupOfLayers) {
  ServeGateways();
  EventsCall call(Gateway(), 0);
  call.AwaitInitialMetadata();
  const auto stored_in = [](int64_t hash, KvGroup group) {
    auto block = std::make_shared<KvBlock>(KvBlock{.hash = hash, .tokens = {1, 2}});
    block->group = group;
    return KvEventLog::Change{.kind = KvEvent::Kind::kStored,
                              .hash = hash,
                              .group = static_cast<int32_t>(group.index),
                              .block = std::move(block)};
  };
  Append({stored_in(5, {.index = 0}), stored_in(5, {.index = 1, .window = 512})});
  Append({{.kind = KvEvent::Kind::kRemoved, .hash = 5, .group = 1, .block = nullptr}});
  const auto change = call.Read();
  ASSERT_TRUE(change);
  ASSERT_EQ(change->events_size(), 2);
  const auto& full = change->events(0).stored();
  EXPECT_TRUE(full.has_group_idx());
  EXPECT_EQ(full.group_idx(), 0u);
  EXPECT_EQ(full.kv_cache_spec_kind(), "full_attention");
  EXPECT_FALSE(full.has_kv_cache_spec_sliding_window());
  const auto& window = change->events(1).stored();
  EXPECT_EQ(window.group_idx(), 1u);
  EXPECT_EQ(window.kv_cache_spec_kind(), "sliding_window");
  EXPECT_EQ(window.kv_cache_spec_sliding_window(), 512u);
  EXPECT_EQ(window.blocks(0).block_hash(), full.blocks(0).block_hash());
  const auto removed = call.Read();
  ASSERT_TRUE(removed);
  EXPECT_EQ(removed->events(0).removed().group_idx(), 1u);
  EXPECT_THAT(removed->events(0).removed().block_hashes(), ElementsAre(5));
  EventsCall later(Gateway(), 0);
  EXPECT_EQ(later.Read()->snapshot().blocks(), 1u) << "that of full layers is still there";
}

TEST_F(GatewayEventsTest, TheAnswerBeginsAtOnceAlthoughNothingIsCached) {
  ServeGateways();
  EventsCall call(Gateway(), 0);
  call.AwaitInitialMetadata();
  Append({Stored(1, std::nullopt)});
  EXPECT_EQ(call.Read()->sequence_number(), 1u);
}

// bad input: Gateways | a subscriber to events that reads more slowly than the cache changes |
//   RESOURCE_EXHAUSTED, SLOW_CONSUMER; the engine does not wait
TEST_F(GatewayEventsTest, ASlowSubscriberIsLetGo) {
  ServeGateways();
  EventsCall call(Gateway(), 0);
  call.AwaitInitialMetadata();
  constexpr size_t kTokens = 1'000;  // more than a connection takes unread
  for (size_t i = 0; i < KvEventLog::kMaxBatches; ++i) {
    Append({Stored(1, std::nullopt, kTokens)});
    Append({Removed(1)});
  }
  uint64_t last = 0;
  while (const auto batch = call.Read()) {
    EXPECT_EQ(batch->sequence_number(), last + 1) << "what it is told has no gaps";
    last = batch->sequence_number();
  }
  EXPECT_LT(last, feed_.log()->last_sequence());
  EXPECT_THAT(call.Finish(), FailsWith(grpc::StatusCode::RESOURCE_EXHAUSTED, "SLOW_CONSUMER"));
}

TEST_F(GatewayEventsTest, ADrainEndsSubscriptions) {
  ServeGateways();
  EventsCall call(Gateway(), 0);
  call.AwaitInitialMetadata();
  std::thread drain([&] { server_->Drain(); });
  EXPECT_THAT(call.Refusal(), FailsWith(grpc::StatusCode::UNAVAILABLE, "DRAINING"));
  drain.join();
}

// bad input: Gateways | SubscribeKvEvents without the role; without a credential where that has not
//   the role, or where there is no prefix cache | PERMISSION_DENIED, ROLE_REQUIRED; UNIMPLEMENTED
TEST_F(GatewayEventsTest, TheTokensOfAllTenantsAreForWhoRoutes) {
  ServerOptions options = Options();
  options.vllm_listen = {"127.0.0.1:0"};
  Serve(options);
  const grpc::Status unnamed = EventsCall(Gateway(), 0).Refusal();
  EXPECT_EQ(unnamed.error_code(), grpc::StatusCode::UNIMPLEMENTED) << "gateways ask once";
  EXPECT_THAT(unnamed.error_message(), HasSubstr("--vllm_route"));
  EXPECT_THAT(EventsCall(Gateway(), 0, keys_.at(Role::kGenerate)).Refusal(),
              FailsWith(grpc::StatusCode::PERMISSION_DENIED, "ROLE_REQUIRED"));
  options.vllm_route = true;
  kv_events_ = nullptr;
  Serve(options);
  EXPECT_EQ(EventsCall(Gateway(), 0).Refusal().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace eta::testing
