// Attention that a plain checkpoint does not have, asked for at the built server.
#include <csignal>
#include <functional>

#include "tests/testing/base/error_details.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/process/model_server.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

v1::GenerateRequest With(const std::function<void(v1::Attention&)>& change) {
  v1::GenerateRequest request = Ask("x");
  request.mutable_stopping()->set_max_tokens(2);
  change(*request.mutable_attention());
  return request;
}

TEST(BadPlainAttention, WhatAModelWithoutAGateDoesNotHave) {
  const TinyModel model({.has_predictor = false});
  ServerProcess server = ServeModel(model.path());
  const auto stub = v1::EtaService::NewStub(
      grpc::CreateChannel(server.AwaitAddress(), grpc::InsecureChannelCredentials()));
  const auto answer = [&](const std::function<void(v1::Attention&)>& change) {
    ClientCall call(*stub);
    call.Start(With(change));
    call.ReadText();
    return call.Finish();
  };
  const grpc::Status temper =
      answer([](v1::Attention& a) { a.set_special_keys(v1::SPECIAL_KEYS_TEMPER); });
  EXPECT_EQ(temper.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(temper), "UNSUPPORTED_BY_MODEL");
  EXPECT_THAT(temper.error_message(), HasSubstr("attention.special_keys"));
  const grpc::Status z = answer([](v1::Attention& a) { a.set_z(1.0f); });
  EXPECT_EQ(z.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(FieldOf(z), "attention.z");
  EXPECT_TRUE(answer([](v1::Attention& a) { a.set_sink_blocks(2); }).ok());
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit().code, 0);

  ServerProcess moment = ServeModel(model.path(), {"--index", "moment"});
  const auto without = v1::EtaService::NewStub(
      grpc::CreateChannel(moment.AwaitAddress(), grpc::InsecureChannelCredentials()));
  ClientCall call(*without);
  call.Start(With([](v1::Attention& a) { a.mutable_dynamic(); }));
  call.ReadText();
  const grpc::Status dynamic = call.Finish();
  EXPECT_EQ(dynamic.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(dynamic.error_message(), HasSubstr("--index=outlier"));
  moment.Signal(SIGTERM);
  EXPECT_EQ(moment.AwaitExit().code, 0);
}

}  // namespace
}  // namespace eta::testing
