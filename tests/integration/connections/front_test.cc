// nginx as deploy/front ships it, in front of the server, over TLS. Streams, cancels, deadlines,
// errors and drains pass through it unchanged. What nginx answers itself are gRPC statuses.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "eta/v1/service.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/generic_call.h"
#include "tests/testing/net/health_call.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/net/raw_calls.h"
#include "tests/testing/process/front_process.h"
#include "tests/testing/process/log_lines.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::system_clock;
using ::testing::HasSubstr;

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

v1::GenerateRequest AnswerThrough(int tokens) {
  v1::GenerateRequest request = Ask("Once upon a time");
  request.mutable_stopping()->set_max_tokens(tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

constexpr char kCalibrateMethod[] = "/eta.v1.EtaService/Calibrate";
constexpr char kImportMethod[] = "/eta.v1.ProfileService/ImportProfile";

class FrontTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!FrontProcess::Installed()) GTEST_SKIP() << "nginx is not installed";
    const std::string make =
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=front "
        "-addext subjectAltName=IP:127.0.0.1 -keyout " +
        Path("key") + " -out " + Path("crt") + " 2>/dev/null";
    ASSERT_EQ(std::system(make.c_str()), 0);  // NOLINT(cert-env33-c, concurrency-mt-unsafe)
    Start({});
  }
  void TearDown() override {
    if (server_ == nullptr) return;
    server_->Signal(SIGTERM);
    EXPECT_EQ(server_->AwaitExit().code, 0) << server_->AwaitExit().errors;
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  void Start(const std::vector<std::string>& more) {
    if (server_ != nullptr) server_->Signal(SIGTERM), server_->AwaitExit();
    std::vector<std::string> flags = {
        "--model", model_.path(),     "--listen", "unix:" + Path("server.sock"), "--threads",
        "1",       "--kv_pool_bytes", "32MiB",    "--max_waiting_requests",      "200"};
    flags.insert(flags.end(), more.begin(), more.end());
    server_ = std::make_unique<ServerProcess>(ETA_BINARY_DIR "/eta-server", flags);
    const std::string address = server_->AwaitAddress();
    ASSERT_NE(address, "") << server_->AwaitExit().errors;
    direct_ = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    front_.emplace(
        FrontProcess::Options{.server = address, .certificate = Path("crt"), .key = Path("key")});
    ASSERT_NE(front_->address(), "") << front_->process().AwaitExit().errors;
    channel_ = NewChannel();
    stub_ = v1::EtaService::NewStub(channel_);
  }
  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = Read(Path("crt"));
    return OwnConnection(front_->address(), grpc::SslCredentials(options));
  }
  // The load that the server itself reports.
  v1::EngineLoad Load() {
    grpc::ClientContext context;
    v1::Stats stats;
    const auto stub = v1::EtaService::NewStub(direct_);
    EXPECT_TRUE(stub->Stats(&context, {}, &stats).ok());
    return stats.load();
  }
  int Running() { return Load().running(); }
  bool Becomes(int requests) {
    for (int i = 0; i < 2000; ++i) {
      const v1::EngineLoad load = Load();
      if (load.running() + load.waiting() == requests) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }
  bool BecomesIdle() { return Becomes(0); }
  // Reason -> lines in the front's log of what it refused itself. nginx writes one after the client
  // has its answer.
  std::map<std::string, int> Refused() const {
    std::map<std::string, int> reasons;
    for (const auto& line : LogLines(front_->RefusalLog(), "front_refused")) {
      EXPECT_THAT(line.value("client", ""), ::testing::StartsWith("127.0.0."));
      ++reasons[line.value("reason", "")];
    }
    return reasons;
  }
  void ExpectRefused(const std::map<std::string, int>& reasons) const {
    for (int i = 0; i < 1000 && Refused() != reasons; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    EXPECT_EQ(Refused(), reasons) << front_->RefusalLog();
  }
  // The code with which the only Generate call ended in the server's log.
  std::string LoggedCode() {
    server_->Signal(SIGTERM);
    const auto lines = LogLines(server_->AwaitExit().errors, "call_end");
    server_.reset();
    std::string code;
    for (const auto& line : lines) {
      if (line.value("method", "") == "Generate") code = line.value("code", "");
    }
    return code;
  }

  const TinyModel model_{{.max_context = 32768}};
  const TempFolder folder_;
  std::unique_ptr<ServerProcess> server_;
  std::optional<FrontProcess> front_;
  std::shared_ptr<grpc::Channel> direct_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::EtaService::Stub> stub_;
};

TEST_F(FrontTest, ChunksArriveWhileTheAnswerIsWrittenAndACancelReachesTheServer) {
  ClientCall call(*stub_);
  call.Start(AnswerThrough(16000));
  EXPECT_TRUE(call.Read().has_started());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(call.Read().has_delta());
  EXPECT_EQ(Running(), 1) << "so the chunks came before the end";
  call.context.TryCancel();
  call.ReadText();
  EXPECT_EQ(call.Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(BecomesIdle());
  EXPECT_EQ(LoggedCode(), "CANCELLED");
}

TEST_F(FrontTest, DeadlinesReachTheServer) {
  ClientCall call(*stub_);
  call.context.set_deadline(system_clock::now() + milliseconds(700));
  call.Start(AnswerThrough(16000));
  call.ReadText();
  EXPECT_EQ(call.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(BecomesIdle());
  // The client's stack gives up at the same moment. Either may be first.
  EXPECT_THAT(LoggedCode(), ::testing::AnyOf("DEADLINE_EXCEEDED", "CANCELLED"));
}

TEST_F(FrontTest, TheServersErrorsKeepTheirDetails) {
  v1::GenerateRequest request = AnswerThrough(4);
  request.mutable_sampling()->set_temperature(-1);
  ClientCall call(*stub_);
  EXPECT_THAT(call.Refusal(request), FailsAt(StatusCode::INVALID_ARGUMENT, "sampling.temperature"));
  EXPECT_EQ(front_->RefusalLog(), "") << "the server logs what it refuses";
}

TEST_F(FrontTest, WhatItRefusesItselfAreStatusesOfGrpc) {
  EXPECT_EQ(GenericCall(channel_, "/eta.v2.No/Such").Exchange("").error_code(),
            StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(GenericCall(channel_, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
                .Exchange("")
                .error_code(),
            StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(GenericCall(channel_, "/grpc.health.v1.Health/Watch").Exchange("").error_code(),
            StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(CheckHealth(channel_, "readiness"), HealthStatus::SERVING);
  const grpc::Status large =
      GenericCall(channel_, kGenerateMethod).Exchange(std::string(10 << 20, 'x'));
  EXPECT_EQ(large.error_code(), StatusCode::RESOURCE_EXHAUSTED) << large.error_message();
  ExpectRefused({{"unimplemented", 3}, {"too_large", 1}});
}

TEST_F(FrontTest, MoreCallsThanOneAddressMayHaveAreRefusedAtOnce) {
  const auto other = v1::EtaService::NewStub(NewChannel());  // one connection takes 100 streams
  std::vector<std::unique_ptr<ClientCall>> calls;
  for (int i = 0; i < 100; ++i) {
    calls.push_back(std::make_unique<ClientCall>(i < 50 ? *stub_ : *other));
    calls.back()->Start(AnswerThrough(16000));
  }
  ASSERT_TRUE(Becomes(100));
  ClientCall more(*stub_);
  more.Start(AnswerThrough(1));
  more.ReadText();
  const grpc::Status refused = more.Finish();
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("this address"));
  ExpectRefused({{"too_many", 1}});
  for (const auto& call : calls) call->context.TryCancel();
  for (const auto& call : calls) call->Finish();
}

TEST_F(FrontTest, OnlyMethodsThatTakeLargeMessagesAreSentThem) {
  ASSERT_NO_FATAL_FAILURE(Start({"--profile_store", Path("profiles.db")}));
  const auto exchange = [this](const char* method, size_t bytes) {
    return GenericCall(channel_, method).Exchange(std::string(bytes, 'x'));
  };
  for (const char* const method : {kCalibrateMethod, kImportMethod}) {
    EXPECT_EQ(exchange(method, 4 << 20).error_code(), StatusCode::INVALID_ARGUMENT) << method;
  }
  EXPECT_EQ(exchange(kGenerateMethod, 1 << 20).error_code(), StatusCode::INVALID_ARGUMENT);
  for (const char* const method : {kGenerateMethod, "/eta.v1.EtaService/Stats"}) {
    const grpc::Status large = exchange(method, 2 << 20);
    EXPECT_EQ(large.error_code(), StatusCode::RESOURCE_EXHAUSTED) << method;
    EXPECT_THAT(large.error_message(), HasSubstr("too large")) << method;
  }
}

TEST_F(FrontTest, HalfSentMessagesAreFewWhereTheyAreLargeAndGivenUp) {
  RawCalls calls(front_->address());
  const std::string half = http2::Message(std::string(1000, 'x')).substr(0, 500);
  for (const uint32_t stream : {1, 3, 5, 7, 9})
    calls.Send(stream, kCalibrateMethod, "", half, false);
  EXPECT_TRUE(calls.Becomes([&] { return calls.Status(9) == "8"; })) << "four of an address";
  calls.Send(11, kGenerateMethod, "", half, false);
  EXPECT_TRUE(calls.Becomes([&] { return calls.NumEnded() == 6; }));
  for (const uint32_t stream : {1, 3, 5, 7, 11}) EXPECT_EQ(calls.Status(stream), "") << "reset";
  EXPECT_FALSE(calls.ThrownOut());
  ExpectRefused({{"too_many", 1}, {"too_slow", 5}});
}

// bad input: Connections | metadata over 8 KiB | RESOURCE_EXHAUSTED by the front, for that call
//   alone; far over it ends the connection
TEST_F(FrontTest, MetadataThatIsTooLongEndsItsCallAlone) {
  ClientCall other(*stub_);  // on the same connection
  other.Start(AnswerThrough(16000));
  EXPECT_TRUE(other.Read().has_started());
  for (const size_t bytes : {8500, 12'000}) {
    ClientCall call(*stub_);
    call.context.AddMetadata("eta-long", std::string(bytes, 'x'));
    const grpc::Status status = call.Refusal(AnswerThrough(4));
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << bytes;
    EXPECT_THAT(status.error_message(), HasSubstr("metadata")) << bytes;
  }
  ExpectRefused({{"too_large", 2}});
  ClientCall fits(*stub_);
  fits.context.AddMetadata("eta-long", std::string(3000, 'x'));
  fits.Start(AnswerThrough(4));
  fits.ReadText();
  EXPECT_TRUE(fits.Finish().ok());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(other.Read().has_delta());
  other.context.TryCancel();
  other.Finish();
}

// gRPC itself would close the connection.
// bad input: Connections | a bad "-bin" value | UNAVAILABLE for that call alone: gRPC closes its
//   connection, which no other call has
TEST_F(FrontTest, ABadBinaryValueEndsItsCallAlone) {
  RawCalls calls(front_->address());
  const std::string message = http2::Message(AnswerThrough(300).SerializeAsString());
  calls.Send(1, kGenerateMethod, "", message);
  EXPECT_TRUE(calls.Becomes([&] { return calls.Answers(1).size() > 1; }));
  calls.Send(3, kGenerateMethod, http2::Literal("eta-bin", "*** no base64 ***"), message);
  calls.Send(5, kGenerateMethod, http2::Literal("eta-bin", "Zm9v"), message);
  EXPECT_TRUE(calls.Becomes([&] { return calls.Ended(1) && calls.Ended(3) && calls.Ended(5); }));
  for (const uint32_t good : {1, 5}) {
    const auto answers = calls.Answers(good);
    ASSERT_FALSE(answers.empty()) << good;
    EXPECT_EQ(answers.back().finished().usage().output_tokens(), 300) << good;
  }
  EXPECT_EQ(calls.Status(1), "0");
  EXPECT_EQ(calls.Status(3), "14");
  EXPECT_FALSE(calls.ThrownOut());
}

TEST_F(FrontTest, ClientsCannotNameTheirTenant) {
  for (const char* const header : {"x-eta-tenant", "eta-tenant"}) {
    ASSERT_NO_FATAL_FAILURE(Start({"--tenant_header", header}));
    const auto ask = [header](const std::shared_ptr<grpc::Channel>& channel, bool with_tenant) {
      const auto stub = v1::EtaService::NewStub(channel);
      ClientCall call(*stub);
      if (with_tenant) call.context.AddMetadata(header, "acme");
      call.Start(AnswerThrough(2));
      call.ReadText();
      return call.Finish();
    };
    EXPECT_TRUE(ask(direct_, true).ok());
    const grpc::Status none = ask(direct_, false);
    EXPECT_FALSE(none.ok());
    EXPECT_EQ(ask(channel_, true).error_code(), none.error_code()) << header;
    EXPECT_EQ(ask(channel_, true).error_message(), none.error_message()) << header;
  }
}

TEST_F(FrontTest, AServerThatDrainsFinishesItsStreamsAndOneThatIsGoneIsUnavailable) {
  ClientCall running(*stub_);
  running.context.set_deadline(system_clock::now() + seconds(60));
  running.Start(AnswerThrough(300));
  EXPECT_TRUE(running.Read().has_started());
  server_->Signal(SIGTERM);
  running.ReadText();
  EXPECT_TRUE(running.Finish().ok());
  EXPECT_EQ(running.finished.usage().output_tokens(), 300);
  EXPECT_EQ(server_->AwaitExit().code, 0);
  server_.reset();
  ClientCall late(*stub_);
  const grpc::Status status = late.Refusal(AnswerThrough(4));
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(late.Trailer("grpc-retry-pushback-ms"), "1000");
  ExpectRefused({{"unavailable", 1}});
}

}  // namespace
}  // namespace eta::testing
