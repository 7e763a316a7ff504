// Long texts whose tokens take time. They wait in turns by tenant, and nobody else waits with them:
// health checks, Stats, prompts of token ids. A failpoint holds whoever makes the tokens.
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/identity/tenant_header.h"
#include "tests/testing/net/health_call.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/process/failpoint_server.h"
#include "tests/testing/process/log_lines.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;

constexpr int kPlaces = 512;
constexpr int kShare = kPlaces / 2;  // of a tenant alone
constexpr int kPerConnection = 60;   // calls
constexpr std::chrono::seconds kPatience{20};

class BusyTokenizer : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(server_->up()) << server_->process().AwaitExit().errors;
    server_.Arm("generate.tokenize=pause");
    Begin("first", 1);  // held
    while (!server_.Struck("generate.tokenize")) std::this_thread::sleep_for(milliseconds(1));
  }

  static void NameTenant(ClientCall& call, const std::string& tenant) {
    call.context.AddMetadata(kTenantHeader, tenant);
  }
  static v1::GenerateRequest Short(v1::GenerateRequest request) {
    request.mutable_stopping()->set_max_tokens(2);
    request.mutable_stopping()->set_ignore_eos(true);
    return request;
  }
  ClientCall& Add(const std::string& tenant) {
    if (begun_++ % kPerConnection == 0) {
      stubs_.push_back(v1::EtaService::NewStub(OwnConnection(server_->address())));
    }
    calls_.push_back(std::make_unique<ClientCall>(*stubs_.back()));
    NameTenant(*calls_.back(), tenant);
    return *calls_.back();
  }
  void Begin(const std::string& tenant, int count) {
    for (int i = 0; i < count; ++i) {
      ClientCall& call = Add(tenant);
      call.context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
      call.Start(Short(Ask("Once upon a time")));
    }
  }
  v1::TokenizerCallStats Waiting() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    context.AddMetadata(kTenantHeader, "ops");
    v1::Stats answer;
    EXPECT_TRUE(server_->stub->Stats(&context, {}, &answer).ok());
    return answer.tokenizer_calls();
  }
  void AwaitWaiting(int count) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (Waiting().waiting() != count) {
      if (std::chrono::steady_clock::now() > end) {
        server_.Disarm();
        FAIL() << "they do not wait for a thread that makes tokens";
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
  }
  void ExpectAnswers() {
    for (const auto& call : calls_) {
      call->ReadText();
      const grpc::Status status = call->Finish();
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(call->finished.usage().output_tokens(), 2);
    }
  }

  const TinyModel model_;
  const TempFolder folder_{FastParent()};
  const std::string health_ = "unix:" + folder_.path() + "/health";
  FailpointServer server_{model_.path(),
                          "",
                          {"--tokenizer_threads", "1", "--tenant_header", kTenantHeader,
                           "--admin_tenants", "ops", "--health_listen", health_}};
  std::vector<std::unique_ptr<v1::EtaService::Stub>> stubs_;
  std::vector<std::unique_ptr<ClientCall>> calls_;
  int begun_ = 0;
};

TEST_F(BusyTokenizer, HealthStatsAndTokenIdsDoNotWaitWithTexts) {
  Begin("acme", 8);
  AwaitWaiting(8);
  EXPECT_EQ(Waiting().max_waiting(), kPlaces);
  for (const std::string& address : {server_->address(), health_}) {
    for (const char* service : {"liveness", "readiness"}) {
      EXPECT_EQ(CheckHealth(OwnConnection(address), service), HealthStatus::SERVING) << address;
    }
  }
  v1::GenerateRequest ids;
  for (const int id : {5, 6, 7}) ids.mutable_token_ids()->add_ids(id);
  ClientCall call(*server_->stub);
  NameTenant(call, "acme");
  call.Start(Short(ids));
  call.ReadText();
  EXPECT_TRUE(call.Finish().ok());
  std::this_thread::sleep_for(milliseconds(100));
  server_.Disarm();
  ExpectAnswers();
  for (const auto& held : calls_) {
    EXPECT_GE(held->finished.timing().queue().nanos(), 100'000'000) << "it waited there";
  }
}

TEST_F(BusyTokenizer, WhoLeavesOrIsTooLateWaitsNoLonger) {
  ClientCall& late = Add("acme");
  late.context.set_deadline(std::chrono::system_clock::now() + milliseconds(300));
  late.Start(Short(Ask("Once upon a time")));
  ClientCall& leaves = Add("acme");
  leaves.Start(Short(Ask("Once upon a time")));
  AwaitWaiting(2);
  leaves.context.TryCancel();
  EXPECT_EQ(leaves.Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(late.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  calls_.resize(1);
  // They have given back what they held, though nobody makes tokens yet.
  const auto running = [this] {
    grpc::ClientContext context;
    context.AddMetadata(kTenantHeader, "ops");
    v1::Stats answer;
    EXPECT_TRUE(server_->stub->Stats(&context, {}, &answer).ok());
    int calls = 0;
    for (const v1::TenantUse& use : answer.uses())
      calls += use.tenant() == "acme" ? use.calls() : 0;
    return calls;
  };
  while (running() > 0) std::this_thread::sleep_for(milliseconds(2));
  server_.Disarm();
  ExpectAnswers();
}

TEST_F(BusyTokenizer, ATenantThatFloodsIsRefusedAndLeavesRoomForTheOthers) {
  Begin("acme", kShare);
  AwaitWaiting(kShare);
  ClientCall refused(*server_->stub);
  NameTenant(refused, "acme");
  const grpc::Status status = refused.Refusal(Ask("Once upon a time"));
  EXPECT_THAT(status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"));
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(status).has_value());
  EXPECT_NE(refused.Trailer("grpc-retry-pushback-ms"), "");
  Begin("other", 2);
  AwaitWaiting(kShare + 2);
  server_.Disarm();
  // Of the flood as many are answered as the engine's queue has room for.
  const size_t others = calls_.size() - 2;
  for (size_t i = 0; i < calls_.size(); ++i) {
    calls_[i]->ReadText();
    const grpc::Status end = calls_[i]->Finish();
    EXPECT_TRUE(end.ok() || (i < others && ReasonOf(end) == "QUEUE_FULL")) << end.error_message();
  }
}

TEST_F(BusyTokenizer, ATextThatCannotBeServedDoesNotWait) {
  v1::GenerateRequest request = Ask("Once upon a time");
  request.mutable_stopping()->set_max_tokens(1'000'000);
  ClientCall call(*server_->stub);
  NameTenant(call, "acme");
  EXPECT_EQ(call.Refusal(request).error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_F(BusyTokenizer, AnEndRefusesWhatWaits) {
  Begin("acme", 3);
  AwaitWaiting(3);
  server_->process().Signal(SIGTERM);
  grpc::Status status;
  do {  // until it takes no new calls
    ClientCall more(*server_->stub);
    NameTenant(more, "ops");
    v1::GenerateRequest ids;
    ids.mutable_token_ids()->add_ids(5);
    more.Start(Short(ids));
    more.ReadText();
    status = more.Finish();
  } while (status.ok());
  server_.Disarm();
  for (const auto& call : calls_) {
    call->ReadText();
    EXPECT_THAT(call->Finish(), FailsWith(StatusCode::UNAVAILABLE, "DRAINING"));
  }
  EXPECT_EQ(server_->process().AwaitExit().code, 0);
}

TEST_F(BusyTokenizer, NoMemoryForTokensRefusesOneCall) {
  server_.Arm("generate.tokenize=bad_alloc*1");
  ExpectAnswers();  // the one that was held
  ClientCall call(*server_->stub);
  NameTenant(call, "acme");
  const grpc::Status status = call.Refusal(Short(Ask("Once upon a time")));
  EXPECT_THAT(status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "MEMORY_PRESSURE"));
  calls_.clear();
  Begin("acme", 1);
  ExpectAnswers();
}

}  // namespace
}  // namespace eta::testing
