// A server on a real socket with a puppet engine.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "eta/v1/profiles.grpc.pb.h"
#include "eta/v1/service.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "service/server/server.h"
#include "tests/testing/engine/puppet_engine.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/profiles/faulty_store.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta::testing {

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override { Serve(); }
  void TearDown() override { StopServing(); }

  // Restarts the server with a new engine, and with the store and the calibrator below.
  void Serve(const ServerOptions& options = {}, const Limits& limits = {}) {
    StopServing();
    engine_ = std::make_unique<PuppetEngine>(limits);
    ServerOptions local = options;
    local.listen = "127.0.0.1:0";
    auto server = Server::Start(local, {.engine = *engine_,
                                        .profiles = store_.get(),
                                        .calibrate = calibrate_,
                                        .telemetry = telemetry_,
                                        .call_observers = call_observers_,
                                        .log = log_,
                                        .limits = limits_.get(),
                                        .kv_events = kv_events_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = NewChannel();
    stub_ = v1::EtaService::NewStub(channel_);
    profile_stub_ = v1::ProfileService::NewStub(channel_);
  }
  void StopServing() {
    server_.reset();
    engine_.reset();
  }

  std::shared_ptr<grpc::Channel> NewChannel(const grpc::ChannelArguments& arguments = {}) {
    return OwnConnection(server_->address(), grpc::InsecureChannelCredentials(), arguments);
  }

  // A profile that calibration could have made for the puppet.
  ProfileContent FittingContent(uint32_t seed) const {
    const EngineInfo& info = engine_->info();
    ProfileContent content = MakeContent(seed, info.config.num_layers, info.config.num_query_heads);
    content.model_fingerprint = info.model_fingerprint;
    content.tokenizer_fingerprint = info.tokenizer_fingerprint;
    content.geometry.block_size = info.block_size;
    content.geometry.sub_block = info.sub_block;
    return content;
  }

  // Expects that the server still works: a call with this metadata goes from request to OK.
  void ExpectGoodCall(const std::map<std::string, std::string>& metadata = {}) {
    ClientCall client(*stub_);
    for (const auto& [key, value] : metadata) client.context.AddMetadata(key, value);
    client.Start(Ask("still there?"));
    const auto call = engine_->TakeAndStart();
    call->Say("yes");
    call->Finish();
    EXPECT_EQ(client.ReadText(), "yes");
    EXPECT_TRUE(client.Finish().ok());
  }

  // Until memory is at this level for the server; false after 10 s without.
  ::testing::AssertionResult AwaitPressure(v1::Pressure level) {
    const auto stub = v1::EtaService::NewStub(channel_);
    for (int i = 0; i < 1000; ++i) {
      grpc::ClientContext context;
      v1::Stats stats;
      if (stub->Stats(&context, v1::StatsRequest(), &stats).ok() &&
          stats.pressure().pressure() == level) {
        return ::testing::AssertionSuccess();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return ::testing::AssertionFailure() << "never " << v1::Pressure_Name(level);
  }

  std::unique_ptr<FaultyStore> store_;  // null: the server has none
  Calibrator calibrate_;
  TelemetrySource telemetry_;  // null: nothing is counted
  std::vector<CallObserver*> call_observers_;
  Log* log_ = nullptr;                    // null: nothing is logged
  std::unique_ptr<TenantLimits> limits_;  // null: tenants have no limits of their own
  KvEventFeed* kv_events_ = nullptr;      // null: nobody can read any
  std::unique_ptr<PuppetEngine> engine_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::EtaService::Stub> stub_;
  std::unique_ptr<v1::ProfileService::Stub> profile_stub_;
};

}  // namespace eta::testing
