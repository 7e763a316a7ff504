// Gateways at a server with a puppet engine: the test plays the gateway and the step thread.
#include <functional>
#include <mutex>
#include <thread>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/net/generic_call.h"
#include "tests/testing/net/health_call.h"
#include "tests/testing/service/gateway_fixture.h"
#include "tests/testing/service/identity_fixture.h"

namespace eta::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Stub = gateway_pb::VllmEngine::Stub;

class Records : public CallObserver {
 public:
  void OnCallEnd(const CallRecord& record) override {
    const std::lock_guard lock(mutex_);
    records_.push_back(record);
  }
  CallRecord Last() const {
    const std::lock_guard lock(mutex_);
    return records_.empty() ? CallRecord() : records_.back();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<CallRecord> records_;
};

ServerOptions WithGateways(std::vector<std::string> listen, ServerOptions options = {}) {
  options.vllm_listen = std::move(listen);
  return options;
}

class GatewayTest : public ServiceTest {
 protected:
  void SetUp() override {
    call_observers_ = {&records_};
    Serve(WithGateways({"127.0.0.1:0", "127.0.0.1:0=puppet-full:full"}));
  }
  std::shared_ptr<grpc::Channel> Gateway(size_t i = 0) {
    return OwnConnection(server_->vllm_listeners().at(i)->address());
  }
  grpc::Status Abort(const std::vector<std::string>& ids) {
    gateway_pb::AbortRequest request;
    for (const std::string& id : ids) request.add_request_ids(id);
    gateway_pb::AbortResponse response;
    return AskGateway(Gateway(), &Stub::Abort, request, response);
  }
  bool Healthy() {
    gateway_pb::HealthCheckResponse response;
    return AskGateway(Gateway(), &Stub::HealthCheck, gateway_pb::HealthCheckRequest(), response)
               .ok() &&
           response.healthy();
  }

  Records records_;
};

TEST_F(GatewayTest, AStreamHasEveryIdInAChunkAndThenItsEnd) {
  GatewayCall client(Gateway());
  auto request = GatewayRequest({3, 4});
  request.set_request_id("cmpl-1");
  client.Start(request);
  const auto call = engine_->TakeAndStart();
  EXPECT_THAT(std::get<1>(call->request().prompt), ElementsAre(3, 4));
  EXPECT_EQ(call->request().tenant, "default");
  call->sink().OnDelta({.ids = {5}});
  const auto first = client.Read();
  ASSERT_TRUE(first.has_chunk());
  EXPECT_THAT(first.chunk().token_ids(), ElementsAre(5));
  EXPECT_EQ(first.chunk().prompt_tokens(), 3u);
  EXPECT_EQ(first.chunk().completion_tokens(), 1u);
  call->sink().OnDelta({.ids = {6}});
  call->sink().OnFinished({.reason = FinishReason::kStopString,
                           .matched_stop = "x",
                           .prompt_tokens = 3,
                           .cached_tokens = 1,
                           .output_tokens = 2});
  client.ReadAll();
  EXPECT_THAT(client.ids.at(0), ElementsAre(6));
  ASSERT_EQ(client.completes.size(), 1u);
  EXPECT_EQ(client.completes[0].output_ids_size(), 0);
  EXPECT_EQ(client.completes[0].finish_reason(), "stop");
  EXPECT_EQ(client.completes[0].matched_stop_str(), "x");
  EXPECT_EQ(client.completes[0].completion_tokens(), 2u);
  EXPECT_EQ(client.completes[0].cached_tokens(), 1u);
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_EQ(client.Trailer("x-eta-attention"), "dynamic");
  EXPECT_EQ(records_.Last().request_id, "cmpl-1");
  EXPECT_EQ(records_.Last().method, "Generate");
}

TEST_F(GatewayTest, WithoutStreamThereIsOneMessageWithAllIds) {
  GatewayCall client(Gateway());
  client.Start(GatewayRequest({3}, /*stream=*/false));
  const auto call = engine_->TakeAndStart();
  call->sink().OnDelta({.ids = {5}});
  call->sink().OnDelta({.ids = {6}});
  call->Finish();
  client.ReadAll();
  EXPECT_TRUE(client.chunks.empty());
  ASSERT_EQ(client.completes.size(), 1u);
  EXPECT_THAT(client.completes[0].output_ids(), ElementsAre(5, 6));
  EXPECT_EQ(client.completes[0].finish_reason(), "length");
  EXPECT_TRUE(client.Finish().ok());
}

TEST_F(GatewayTest, SeveralAnswersAreSeveralRequestsOfOneCall) {
  GatewayCall client(Gateway());
  auto request = GatewayRequest({3});
  request.mutable_sampling_params()->set_n(2);
  request.mutable_sampling_params()->set_seed(7);
  client.Start(request);
  const auto first = engine_->TakeAndStart();
  const auto second = engine_->TakeAndStart();
  EXPECT_EQ(first->request().sampling.seed, 7u);
  EXPECT_EQ(second->request().sampling.seed, 8u);
  second->sink().OnDelta({.ids = {6}});
  first->sink().OnDelta({.ids = {5}});
  second->Finish();
  first->Finish();
  client.ReadAll();
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_THAT(client.ids, ElementsAre(ElementsAre(5), ElementsAre(6)));
  ASSERT_EQ(client.completes.size(), 2u);
  EXPECT_EQ(client.completes[0].index(), 1u);
  EXPECT_EQ(client.completes[1].index(), 0u);
  EXPECT_EQ(records_.Last().outcome.prompt_tokens, 6) << "of both";
}

TEST_F(GatewayTest, AnAnswerThatFailsEndsTheOthersWithIt) {
  GatewayCall client(Gateway());
  auto request = GatewayRequest({3});
  request.mutable_sampling_params()->set_n(2);
  client.Start(request);
  const auto first = engine_->TakeAndStart();
  const auto second = engine_->TakeAndStart();
  first->Fail(MakeError(absl::StatusCode::kInternal, "nan", {.reason = "NONFINITE_LOGITS"}));
  EXPECT_TRUE(engine_->AwaitCancel(*second));
  second->Fail(absl::CancelledError());
  client.ReadAll();
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::INTERNAL);
}

TEST_F(GatewayTest, AnAnswerThatFindsNoPlaceEndsTheCall) {
  engine_->Refuse(absl::OkStatus());
  engine_->Refuse(MakeError(absl::StatusCode::kResourceExhausted, "the queue is full",
                            {.reason = "QUEUE_FULL"}));
  GatewayCall client(Gateway());
  auto request = GatewayRequest({3});
  request.mutable_sampling_params()->set_n(3);
  client.Start(request);
  const auto first = engine_->TakeAndStart();
  EXPECT_TRUE(engine_->AwaitCancel(*first));
  first->Fail(absl::CancelledError());
  client.ReadAll();
  EXPECT_THAT(client.Finish(), FailsWith(grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"));
}

// bad input: Gateways | Abort of ids that are not known, that several requests have, of another
//   tenant's | OK; all of the caller's own with that id end, and nobody else's
TEST_F(GatewayTest, AbortEndsAllRequestsOfThatNameAndNoOthers) {
  GatewayCall one(Gateway());
  GatewayCall same(Gateway());
  GatewayCall other(Gateway());
  auto request = GatewayRequest({3});
  request.set_request_id("a");
  one.Start(request);
  const auto first = engine_->TakeAndStart();
  request.set_stream(false);
  same.Start(request);
  const auto second = engine_->TakeAndStart();
  request.set_request_id("b");
  other.Start(request);
  const auto third = engine_->TakeAndStart();
  second->sink().OnDelta({.ids = {9}});

  EXPECT_TRUE(Abort({"unknown", "a"}).ok());
  EXPECT_TRUE(engine_->AwaitCancel(*first));
  EXPECT_TRUE(engine_->AwaitCancel(*second));
  first->Fail(absl::CancelledError());
  second->Fail(absl::CancelledError());
  for (GatewayCall* const client : {&one, &same}) {
    client->ReadAll();
    ASSERT_EQ(client->completes.size(), 1u);
    EXPECT_EQ(client->completes[0].finish_reason(), "abort");
    EXPECT_TRUE(client->Finish().ok());
  }
  EXPECT_THAT(same.completes[0].output_ids(), ElementsAre(9)) << "what it had is told";
  EXPECT_TRUE(Abort({"a"}).ok()) << "again, and there is none";

  third->Finish();
  other.ReadAll();
  EXPECT_EQ(other.completes.at(0).finish_reason(), "length");
}

TEST_F(GatewayTest, AnAbortedCallIsRecordedAsCancelled) {
  GatewayCall client(Gateway());
  auto request = GatewayRequest({3});
  request.set_request_id("a");
  client.Start(request);
  const auto call = engine_->TakeAndStart();
  EXPECT_TRUE(Abort({"a"}).ok());
  call->Fail(absl::CancelledError());
  client.ReadAll();
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_TRUE(Eventually([&] { return records_.Last().method == "Generate"; }));
  EXPECT_EQ(records_.Last().reason, "CLIENT_CANCELLED");
}

TEST_F(GatewayTest, AClientThatLeavesEndsItsRequest) {
  GatewayCall client(Gateway());
  client.Start(GatewayRequest({3}));
  const auto call = engine_->TakeAndStart();
  client.context.TryCancel();
  EXPECT_TRUE(engine_->AwaitCancel(*call));
  call->Fail(absl::CancelledError());
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GatewayTest, WhatIsBadIsRefusedByTheNameItHasThere) {
  auto request = GatewayRequest({3});
  request.mutable_sampling_params()->set_top_p(1.5f);
  grpc::Status status = GatewayCall(Gateway()).Refusal(request);
  EXPECT_THAT(status, FailsAt(grpc::StatusCode::INVALID_ARGUMENT, "sampling_params.top_p"));
  EXPECT_THAT(status.error_message(), StartsWith("sampling_params.top_p: "));
  request.mutable_sampling_params()->clear_top_p();
  request.mutable_sampling_params()->set_json_schema("");
  status = GatewayCall(Gateway()).Refusal(request);
  EXPECT_THAT(status, FailsAt(grpc::StatusCode::INVALID_ARGUMENT, "sampling_params.json_schema"));
  status = GatewayCall(Gateway()).Refusal(GatewayRequest({}));
  EXPECT_THAT(status, FailsAt(grpc::StatusCode::INVALID_ARGUMENT, "input"));
  engine_->Refuse(MakeError(absl::StatusCode::kResourceExhausted, "the queue is full",
                            {.reason = "QUEUE_FULL"}));
  status = GatewayCall(Gateway()).Refusal(GatewayRequest({3}));
  EXPECT_THAT(status, FailsWith(grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"));
}

// bad input: Gateways | `x-eta-attention` of another word, there twice, of a profile that cannot be
//   or is not there | INVALID_ARGUMENT, `x-eta-attention` named; NOT_FOUND, PROFILE_NOT_FOUND
TEST_F(GatewayTest, AttentionIsTheListenersUnlessMetadataSaysOther) {
  const auto mode = [this](size_t gateway, const std::string& metadata) {
    GatewayCall client(Gateway(gateway));
    if (!metadata.empty()) client.context.AddMetadata("x-eta-attention", metadata);
    client.Start(GatewayRequest({3}));
    const auto call = engine_->TakeAndStart();
    call->Finish();
    client.ReadAll();
    EXPECT_TRUE(client.Finish().ok());
    return std::pair(call->request().attention.mode, client.Trailer("x-eta-attention"));
  };
  using Told = std::pair<std::optional<AttentionMode>, std::string>;
  EXPECT_EQ(mode(0, ""), Told(std::nullopt, "dynamic"));
  EXPECT_EQ(mode(0, "full"), Told(AttentionMode::kFull, "full"));
  EXPECT_EQ(mode(1, ""), Told(AttentionMode::kFull, "full"));
  EXPECT_EQ(mode(1, "dynamic"), Told(AttentionMode::kDynamic, "dynamic"));

  const auto refusal = [this](const std::vector<std::string>& values) {
    GatewayCall client(Gateway());
    for (const auto& value : values) client.context.AddMetadata("x-eta-attention", value);
    return client.Refusal(GatewayRequest({3}));
  };
  EXPECT_THAT(refusal({"sparse"}), FailsAt(grpc::StatusCode::INVALID_ARGUMENT, "x-eta-attention"));
  EXPECT_THAT(refusal({"full", "full"}),
              FailsAt(grpc::StatusCode::INVALID_ARGUMENT, "x-eta-attention"));
  EXPECT_THAT(refusal({"profile:../x"}),
              FailsAt(grpc::StatusCode::INVALID_ARGUMENT, "x-eta-attention"));
  EXPECT_THAT(refusal({"profile:legal"}),
              FailsWith(grpc::StatusCode::NOT_FOUND, "PROFILE_NOT_FOUND"));
}

TEST_F(GatewayTest, WhatIsReadComesAfterTheAnswer) {
  GatewayCall client(Gateway());
  client.Start(GatewayRequest({3}));
  const auto call = engine_->TakeAndStart();
  FinishedEvent end = {.output_tokens = 3};
  end.attention.decode_rows = 2;
  end.attention.union_density_sum = 0.5;
  end.attention.head_density_sum = 0.25;
  end.attention.kv_bytes_read = 10;
  end.attention.kv_bytes_dense = 40;
  call->sink().OnFinished(end);
  client.ReadAll();
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_EQ(client.Trailer("x-eta-union-density"), "0.25");
  EXPECT_EQ(client.Trailer("x-eta-head-density"), "0.125");
  EXPECT_EQ(client.Trailer("x-eta-kv-bytes-read"), "10");
  EXPECT_EQ(client.Trailer("x-eta-kv-bytes-dense"), "40");
}

TEST_F(GatewayTest, TheModelIsCalledAsItsListenerSays) {
  const auto info = [this](size_t gateway) {
    gateway_pb::GetModelInfoResponse response;
    EXPECT_TRUE(AskGateway(Gateway(gateway), &Stub::GetModelInfo, gateway_pb::GetModelInfoRequest(),
                           response)
                    .ok());
    return response;
  };
  EXPECT_EQ(info(0).served_model_name(), "puppet");
  EXPECT_EQ(info(1).served_model_name(), "puppet-full");
  EXPECT_EQ(info(1).model_path(), "/eta-server/puppet-full");
  EXPECT_EQ(info(0).max_context_length(), static_cast<uint32_t>(Limits().max_context));
  EXPECT_EQ(info(0).vocab_size(), 1000u);
  EXPECT_THAT(info(0).eos_token_ids(), ElementsAre(2));
  EXPECT_EQ(info(0).bos_token_id(), 1);
  EXPECT_TRUE(info(0).is_generation());
}

TEST_F(GatewayTest, LoadsAreOfAllDevicesTogether) {
  engine_->SetSnapshot({.running = 2, .waiting = 3, .blocks_used = 16});
  gateway_pb::GetLoadsResponse loads;
  ASSERT_TRUE(AskGateway(Gateway(), &Stub::GetLoads, gateway_pb::GetLoadsRequest(), loads).ok());
  ASSERT_EQ(loads.loads_size(), 1);
  EXPECT_EQ(loads.loads(0).num_running_reqs(), 2);
  EXPECT_EQ(loads.loads(0).num_total_reqs(), 5);
  EXPECT_EQ(loads.loads(0).num_used_tokens(), 16 * 64);
  EXPECT_EQ(loads.loads(0).max_total_num_tokens(), 64 * 64);
  EXPECT_DOUBLE_EQ(loads.loads(0).token_usage(), 0.25);
  gateway_pb::GetServerInfoResponse info;
  ASSERT_TRUE(
      AskGateway(Gateway(), &Stub::GetServerInfo, gateway_pb::GetServerInfoRequest(), info).ok());
  EXPECT_EQ(info.active_requests(), 5u);
  EXPECT_EQ(info.block_size(), 64);
  EXPECT_EQ(info.data_parallel_size(), 1);
}

// bad input: Gateways | methods of other engines' protocols, of eta.v1 at a gateway's listener;
//   Embed and profilers | UNIMPLEMENTED, at once
TEST_F(GatewayTest, WhatIsNotThereIsUnimplementedAtOnceAndTheApisAreApart) {
  const auto code = [](const std::shared_ptr<grpc::Channel>& channel, const std::string& method) {
    return GenericCall(channel, method).Exchange("").error_code();
  };
  for (const char* const method :
       {"/vllm.grpc.engine.VllmEngine/Embed", "/vllm.grpc.engine.VllmEngine/StartProfile",
        "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents",
        "/sglang.grpc.scheduler.SglangScheduler/HealthCheck", "/eta.v1.EtaService/Stats"}) {
    EXPECT_EQ(code(Gateway(), method), grpc::StatusCode::UNIMPLEMENTED) << method;
  }
  EXPECT_EQ(code(channel_, "/vllm.grpc.engine.VllmEngine/HealthCheck"),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(CheckHealth(Gateway(), ""), HealthStatus::SERVING);
}

TEST_F(GatewayTest, ADrainingServerIsNotHealthyAndRefusesWithUnavailable) {
  ServerOptions options = WithGateways({"127.0.0.1:0"});
  options.drain_delay = std::chrono::milliseconds(0);
  Serve(options);
  const auto gateway = Gateway();
  EXPECT_TRUE(Healthy());
  GatewayCall client(gateway);
  client.Start(GatewayRequest({3}));
  const auto call = engine_->TakeAndStart();
  std::thread drain([this] { server_->Drain(); });
  EXPECT_TRUE(Eventually([&] { return !Healthy(); }));
  const bool refuses = Eventually([&] {
    GatewayCall late(gateway);
    // One that is still taken waits for the puppet.
    late.context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
    return late.Refusal(GatewayRequest({3})).error_code() == grpc::StatusCode::UNAVAILABLE;
  });
  call->Finish();
  client.ReadAll();
  EXPECT_TRUE(client.Finish().ok()) << "what ran has its end";
  drain.join();
  EXPECT_TRUE(refuses);
}

class GatewayIdentityTest : public IdentityTest {};

// A gateway has no credential: its listener stands for one.
// bad input: Gateways | FlushCache without the role; a credential that is not valid |
//   PERMISSION_DENIED, ROLE_REQUIRED; UNAUTHENTICATED
TEST_F(GatewayIdentityTest, AListenerStandsForACallerOfFewRoles) {
  for (const bool route : {false, true}) {
    ServerOptions options = Options();
    options.vllm_listen = {"127.0.0.1:0"};
    options.vllm_tenant = "edge";
    options.vllm_route = route;
    Serve(options);
    EXPECT_EQ(ClientCall(*stub_).Refusal(testing::Ask("x")).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
    const auto gateway = OwnConnection(server_->vllm_listeners().at(0)->address());
    GatewayCall client(gateway);
    client.Start(GatewayRequest({3}));
    const auto call = engine_->TakeAndStart();
    EXPECT_EQ(call->request().tenant, "edge");
    call->Finish();
    client.ReadAll();
    EXPECT_TRUE(client.Finish().ok());
    ::smg::grpc::common::FlushCacheResponse flushed;
    const grpc::Status status =
        AskGateway(gateway, &Stub::FlushCache, ::smg::grpc::common::FlushCacheRequest(), flushed);
    EXPECT_EQ(status.ok(), route) << status.error_message();
    EXPECT_EQ(flushed.success(), route);
    if (!route) {
      EXPECT_THAT(status, FailsWith(grpc::StatusCode::PERMISSION_DENIED, "ROLE_REQUIRED"));
    }
    GatewayCall wrong(gateway);
    wrong.context.AddMetadata("authorization", "Bearer eta_nobody_x");
    EXPECT_EQ(wrong.Refusal(GatewayRequest({3})).error_code(), grpc::StatusCode::UNAUTHENTICATED)
        << "what is shown must be valid";
  }
}

// bad input: Server | --vllm_listen of no address, no name or no attention, open to other hosts
//   without what that takes; its other flags without it | exit code 2, the flag named
TEST_F(GatewayIdentityTest, FlagsOfGatewaysThatOpenOrDoNothingAreRefused) {
  const auto error = [](const std::function<void(ServerOptions&)>& change) {
    ServerOptions options;
    change(options);
    return std::string(CheckOptions(options, Limits()).message());
  };
  EXPECT_EQ(error([](ServerOptions& o) { o.vllm_listen = {"127.0.0.1:0=m:profile:legal@3"}; }), "");
  EXPECT_EQ(error([](ServerOptions& o) { o.vllm_listen = {"unix:/run/eta/g", "[::1]:0"}; }), "");
  for (const std::string bad :
       {"nowhere", "unix:", "unix:=m", "127.0.0.1:0=", "127.0.0.1:0=a b",
        "127.0.0.1:0=m:", "127.0.0.1:0=m:sparse", "127.0.0.1:0=m:profile:"}) {
    EXPECT_THAT(error([&](ServerOptions& o) { o.vllm_listen = {bad}; }),
                StartsWith("--vllm_listen: "))
        << bad;
  }
  const auto open = [](ServerOptions& o) { o.vllm_listen = {"0.0.0.0:0=m"}; };
  EXPECT_THAT(error(open), HasSubstr("other hosts could reach"));
  EXPECT_EQ(error([&](ServerOptions& o) {
              open(o);
              o.allow_unauthenticated_network = true;
              o.allow_plaintext_network = true;
            }),
            "");
  EXPECT_EQ(error([&](ServerOptions& o) {
              open(o);
              o.tls_cert = o.tls_key = o.tls_client_ca = "f";
            }),
            "");
  EXPECT_THAT(error([](ServerOptions& o) { o.vllm_tenant = "edge"; }), HasSubstr("--vllm_listen"));
  EXPECT_THAT(error([](ServerOptions& o) {
                o.vllm_listen = {"127.0.0.1:0"};
                o.vllm_route = true;
              }),
              HasSubstr("--vllm_route: without --identity"));
  EXPECT_THAT(error([](ServerOptions& o) {
                o.vllm_listen = {"127.0.0.1:0"};
                o.vllm_tenant = "a b";
              }),
              HasSubstr("--vllm_tenant"));
}

class Aborted : public AbortableRequest {
 public:
  void Abort() override { ++times; }
  int times = 0;
};

TEST(NamedRequests, ATenantAbortsItsOwnAlone) {
  NamedRequests requests;
  const auto acme = std::make_shared<Aborted>();
  const auto umbrella = std::make_shared<Aborted>();
  const Tenant tenant = *Tenant::Parse("acme");
  Lease place = requests.Add(tenant, "a", acme);
  const Lease other = requests.Add(*Tenant::Parse("umbrella"), "a", umbrella);
  requests.Abort(tenant, "a");
  requests.Abort(tenant, "b");
  EXPECT_EQ(acme->times, 1);
  EXPECT_EQ(umbrella->times, 0);
  place.Release();
  requests.Abort(tenant, "a");
  EXPECT_EQ(acme->times, 1);
}

}  // namespace
}  // namespace eta::testing
