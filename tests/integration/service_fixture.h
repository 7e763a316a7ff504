// A server on a real socket with a puppet for an engine.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "service/profile_source.h"
#include "service/server.h"
#include "tests/testing/client_call.h"
#include "tests/testing/puppet_engine.h"

namespace eta::testing {

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override { Serve(); }
  void TearDown() override { StopServing(); }

  // Starts over, with a new engine.
  void Serve(const ServerOptions& options = {}, const Limits& limits = {}) {
    StopServing();
    engine_ = std::make_unique<PuppetEngine>(limits);
    ServerOptions local = options;
    local.listen = "127.0.0.1:0";
    auto server = Server::Start(local, *engine_, profiles_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = NewChannel();
    stub_ = v1::EtaService::NewStub(channel_);
  }
  void StopServing() {
    server_.reset();
    engine_.reset();
  }

  std::shared_ptr<grpc::Channel> NewChannel(grpc::ChannelArguments arguments = {}) {
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  // A call from request to OK: that the server still works after whatever came before.
  void ExpectGoodCall() {
    ClientCall client(*stub_);
    client.Start(Ask("still there?"));
    const auto call = engine_->TakeCall();
    ASSERT_NE(call, nullptr);
    call->Start();
    call->Say("yes");
    call->Finish();
    EXPECT_EQ(client.ReadText(), "yes");
    EXPECT_TRUE(client.Finish().ok());
  }

  const NoProfiles profiles_{};
  std::unique_ptr<PuppetEngine> engine_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::EtaService::Stub> stub_;
};

}  // namespace eta::testing
