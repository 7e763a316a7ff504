// The log of the shipped server: one object per line, and nothing of what clients send.
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>

#include "eta/v1/admin.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/identity/tenant_header.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/process/log_lines.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

const std::string kLoggedModel = ETA_SOURCE_DIR "/models/eta-27m";
constexpr char kCanary[] = "canary";
constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";

const std::string kServer = ETA_BINARY_DIR "/eta-server";

std::vector<std::string> With(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"--model", kLoggedModel, "--listen", "127.0.0.1:0"});
  return flags;
}

v1::GenerateRequest Repeat() {
  // The model repeats a word that it sees again and again.
  v1::GenerateRequest request = Ask("canary canary canary canary canary canary canary canary");
  request.mutable_stopping()->set_max_tokens(12);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0.0f);
  return request;
}

class LogProcess : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& flags) {
    server_.emplace(kServer, With(flags));
    const std::string address = server_->AwaitAddress();
    ASSERT_NE(address, "") << server_->AwaitExit().errors;
    channel_ = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    stub_ = v1::EtaService::NewStub(channel_);
  }
  std::unique_ptr<ClientCall> Call(v1::GenerateRequest request, const std::string& id) {
    request.set_request_id(id);
    auto client = std::make_unique<ClientCall>(*stub_);
    client->context.AddMetadata(kTenantHeader, "shop");
    client->context.AddMetadata("traceparent",
                                std::string("00-") + kTrace + "-00f067aa0ba902b7-00");
    client->Start(request);
    return client;
  }
  std::string Refuse(const v1::GenerateRequest& request, const std::string& id) {
    const auto client = Call(request, id);
    client->ReadText();
    return ReasonOf(client->Finish());
  }
  // Stops the server and returns what it said.
  std::string Stop() {
    server_->Signal(SIGTERM);
    const ServerProcess::Exit exit = server_->AwaitExit();
    EXPECT_EQ(exit.code, 0) << exit.errors;
    return exit.errors;
  }
  grpc::Status SetLevel(v1::LogLevel level) {
    grpc::ClientContext context;
    context.AddMetadata(kTenantHeader, "ops");
    v1::SetLogLevelRequest request;
    request.set_level(level);
    v1::SetLogLevelResponse response;
    return v1::AdminService::NewStub(channel_)->SetLogLevel(&context, request, &response);
  }

  std::optional<ServerProcess> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::EtaService::Stub> stub_;
};

const std::vector<std::string> kTenants = {"--tenant_header", kTenantHeader, "--admin_tenants",
                                           "ops"};

TEST_F(LogProcess, TellsAServersLifeAndItsCalls) {
  ASSERT_NO_FATAL_FAILURE(Start(kTenants));
  const auto good = Call(Repeat(), "good");
  good->ReadText();
  ASSERT_TRUE(good->Finish().ok());
  v1::GenerateRequest bad = Repeat();
  bad.mutable_stopping()->set_max_tokens(0);
  EXPECT_EQ(Refuse(bad, "bad"), "INVALID_FIELD");
  const std::string log = Stop();

  std::vector<std::string> life;
  for (const auto& line : LogLines(log)) {
    EXPECT_TRUE(line.contains("time") && line.contains("level"));
    if (line["event"] != "call_end") life.push_back(line["event"]);
  }
  EXPECT_THAT(life, ElementsAre("insecure", "start", "listening", "ready", "drain_begin",
                                "not_ready", "closed", "drain_end", "stop"));
  const auto start = LogLines(log, "start").front();
  EXPECT_EQ(start["model"], "eta-27m");
  const auto file_bytes = static_cast<double>(
      std::filesystem::file_size(ETA_SOURCE_DIR "/models/eta-27m/model.safetensors"));
  EXPECT_NEAR(start["weight_bytes"].get<double>(), file_bytes, file_bytes / 10)
      << "16 bits in the file are 16 bits in memory";
  EXPECT_GT(start["kv_bytes"], 0);
  EXPECT_EQ(start["flags"]["tenant_header"], kTenantHeader);

  const auto calls = LogLines(log, "call_end");
  ASSERT_THAT(calls, SizeIs(2));
  nlohmann::json call = calls[0];
  EXPECT_EQ(call["level"], "info");
  EXPECT_EQ(call["method"], "Generate");
  EXPECT_EQ(call["request_id"], "good");
  EXPECT_EQ(call["tenant"], "shop");
  EXPECT_EQ(call["trace_id"], kTrace);
  EXPECT_EQ(call["code"], "OK");
  EXPECT_EQ(call["mode"], "dynamic");
  EXPECT_EQ(call["finish_reason"], "length");
  const v1::Finished& told = good->finished;
  EXPECT_EQ(call["prompt_tokens"], told.usage().prompt_tokens());
  EXPECT_EQ(call["output_tokens"], told.usage().output_tokens());
  EXPECT_EQ(call["decode_rows"], told.attention().decode_steps());
  EXPECT_EQ(call["union_density"], told.attention().union_density());
  EXPECT_EQ(call["kv_bytes_read"], told.attention().kv_bytes_read());
  EXPECT_EQ(call["kv_bytes_dense"], told.attention().kv_bytes_dense());
  call = calls[1];
  EXPECT_EQ(call["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(call["reason"], "INVALID_FIELD");
  EXPECT_EQ(call["field"], "stopping.max_tokens");
  EXPECT_FALSE(call.contains("output_tokens"));
}

TEST_F(LogProcess, HoldsNothingOfWhatClientsAskOrGet) {
  const TempFolder folder;
  std::vector<std::string> flags = kTenants;
  flags.insert(flags.end(),
               {"--log_level", "debug", "--profile_store", folder.path() + "/profiles.db"});
  ASSERT_NO_FATAL_FAILURE(Start(flags));
  const auto good = Call(Repeat(), "good");
  EXPECT_THAT(good->ReadText(), HasSubstr(kCanary)) << "else this proves nothing";
  v1::GenerateRequest request = Repeat();
  request.mutable_stopping()->add_stop_strings(std::string(kCanary) + "\xff");
  Refuse(request, "stop-string");
  request = Repeat();
  request.set_text(std::string(kCanary) + "\xff");
  Refuse(request, "not-utf8");
  request = Repeat();
  request.set_model(kCanary);
  request.clear_text();
  Refuse(request, "no-text");
  request = Repeat();
  for (int i = 0; i < 16; ++i) request.set_text(request.text() + request.text());
  Refuse(request, "too-long");
  request = Repeat();
  request.mutable_stopping()->set_max_tokens(4000);
  const auto leaving = Call(request, "leaving");
  leaving->Read();
  leaving->context.TryCancel();
  leaving->Finish();
  grpc::ClientContext context;
  context.AddMetadata(kTenantHeader, "shop");
  v1::CalibrateRequest calibrate;
  calibrate.set_name("legal");
  calibrate.add_samples()->set_text(kCanary);
  calibrate.mutable_target()->set_union_density(0.5);
  const auto reader = stub_->Calibrate(&context, calibrate);
  for (v1::CalibrateResponse message; reader->Read(&message);) {
  }
  EXPECT_FALSE(reader->Finish().ok()) << "one short sample is not enough";
  const std::string log = Stop();
  EXPECT_THAT(LogLines(log, "call_end"), SizeIs(7));
  for (const auto& line : LogLines(log, "call_end")) {
    if (line.value("request_id", "") == "no-text")
      continue;  // the model's name is one that the client chose
    EXPECT_THAT(line.dump(), Not(HasSubstr(kCanary)));
  }
  EXPECT_THAT(log, Not(HasSubstr("canary canary")));
}

TEST_F(LogProcess, ItsLevelIsChangedWhileTheServerRunsAndThatLeavesATrace) {
  ASSERT_NO_FATAL_FAILURE(Start(kTenants));
  ASSERT_TRUE(SetLevel(v1::LOG_LEVEL_ERROR).ok());
  const auto unheard = Call(Repeat(), "unheard");
  unheard->ReadText();
  EXPECT_TRUE(unheard->Finish().ok());
  ASSERT_TRUE(SetLevel(v1::LOG_LEVEL_INFO).ok());
  const auto heard = Call(Repeat(), "heard");
  heard->ReadText();
  EXPECT_TRUE(heard->Finish().ok());
  const std::string log = Stop();
  EXPECT_THAT(log, Not(HasSubstr("unheard")));
  EXPECT_THAT(log, HasSubstr("\"heard\""));
  const auto changes = LogLines(log, "log_level");
  ASSERT_THAT(changes, SizeIs(2)) << "also what silences the log";
  EXPECT_EQ(changes[0]["log_level"], "error");
  EXPECT_EQ(changes[0]["tenant"], "ops");
  EXPECT_EQ(changes[0]["credential"], "header");
  EXPECT_EQ(changes[1]["log_level"], "info");
}

TEST_F(LogProcess, WhatIsInsecureIsSaidAtEveryLevel) {
  std::vector<std::string> flags = kTenants;
  flags.insert(flags.end(), {"--log_level", "error"});
  ASSERT_NO_FATAL_FAILURE(Start(flags));
  const auto said = LogLines(Stop(), "insecure");
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0]["flag"], "--tenant_header");
}

TEST_F(LogProcess, IsTextWhereItIsAskedFor) {
  ASSERT_NO_FATAL_FAILURE(Start({"--log_format", "text"}));
  const std::string log = Stop();
  EXPECT_THAT(log, StartsWith("eta-server: model eta-27m ("));
  EXPECT_THAT(log, HasSubstr("\neta-server: stopping: running calls have up to 60 s\n"));
  EXPECT_THAT(log, ::testing::EndsWith("\neta-server: stopped\n"));
}

}  // namespace
}  // namespace eta::testing
