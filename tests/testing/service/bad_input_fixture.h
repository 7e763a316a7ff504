// The shipped server with the model that comes with it and few slots. After every case a good call
// works.
#pragma once

#include <csignal>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {

class BadInputTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new ServerProcess(
        ETA_BINARY_DIR "/eta-server",
        {"--model", ETA_SOURCE_DIR "/models/eta-27m", "--listen", "127.0.0.1:0", "--metrics_listen",
         "127.0.0.1:0", "--max_running", "4", "--max_waiting_requests", "4", "--default_deadline",
         "3s", "--slow_reader_timeout", "1s"});
    const std::string url = server_->AwaitLine("metrics on ");
    metrics_port_ = std::stoi("0" + url.substr(url.rfind(':') + 1));
    address_ = new std::string(server_->AwaitAddress());
  }
  static void TearDownTestSuite() {
    server_->Signal(SIGTERM);
    const ServerProcess::Exit exit = server_->AwaitExit();
    EXPECT_EQ(exit.code, 0) << exit.errors;
    delete server_;
    delete address_;
  }
  void SetUp() override {
    ASSERT_FALSE(address_->empty()) << server_->AwaitExit().errors;
    channel_ = grpc::CreateChannel(*address_, grpc::InsecureChannelCredentials());
    stub_ = v1::EtaService::NewStub(channel_);
  }
  void TearDown() override {
    ClientCall good(*stub_);
    v1::GenerateRequest request = Ask("The capital of France is");
    request.mutable_stopping()->set_max_tokens(4);
    request.mutable_stopping()->set_ignore_eos(true);
    good.Start(request);
    good.ReadText();
    const grpc::Status status = good.Finish();
    EXPECT_TRUE(status.ok()) << "a good call afterwards: " << status.error_message();
    EXPECT_EQ(good.finished.usage().output_tokens(), 4);
  }

  grpc::Status Answer(const v1::GenerateRequest& request) {
    ClientCall call(*stub_);
    call.Start(request);
    call.ReadText();
    return call.Finish();
  }
  // The field that INVALID_ARGUMENT names; for another status its code.
  std::string BadField(const v1::GenerateRequest& request) {
    const grpc::Status status = Answer(request);
    if (status.error_code() != grpc::StatusCode::INVALID_ARGUMENT) {
      return absl::StrCat("code ", static_cast<int>(status.error_code()));
    }
    return FieldOf(status);
  }

  static inline ServerProcess* server_ = nullptr;
  static inline std::string* address_ = nullptr;
  static inline int metrics_port_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::EtaService::Stub> stub_;
};

}  // namespace eta::testing
