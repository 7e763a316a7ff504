// A Generate call from the client's side.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "eta/v1/service.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "tests/testing/base/error_details.h"

namespace eta::testing {

inline constexpr char kGenerateMethod[] = "/eta.v1.EtaService/Generate";

// A Generate call from the client's side, message by message.
class ClientCall {
 public:
  explicit ClientCall(v1::EtaService::Stub& stub) : stub_(stub) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  }

  void Start(const v1::GenerateRequest& request) { reader_ = stub_.Generate(&context, request); }
  // Returns the next message; an empty one if there are no more.
  v1::GenerateResponse Read() {
    v1::GenerateResponse message;
    if (!reader_->Read(&message)) return {};
    return message;
  }
  // Returns the remaining text of the answer and keeps the last Finished.
  std::string ReadText() {
    std::string text;
    for (v1::GenerateResponse message = Read();
         message.event_case() != v1::GenerateResponse::EVENT_NOT_SET; message = Read()) {
      text += message.delta().text();
      if (message.has_finished()) finished = message.finished();
    }
    return text;
  }
  grpc::Status Finish() { return reader_->Finish(); }
  // Starts a call that is expected to have no messages, and returns its status.
  grpc::Status Refusal(const v1::GenerateRequest& request) {
    Start(request);
    EXPECT_EQ(Read().event_case(), v1::GenerateResponse::EVENT_NOT_SET);
    return Finish();
  }
  std::string Trailer(const std::string& key) const {
    const auto& trailers = context.GetServerTrailingMetadata();
    const auto found = trailers.find(key);
    return found == trailers.end() ? "" : std::string(found->second.data(), found->second.size());
  }

  grpc::ClientContext context;
  v1::Finished finished;

 private:
  v1::EtaService::Stub& stub_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
};

inline v1::GenerateRequest Ask(const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  return request;
}

inline v1::GenerateRequest LongAnswer(int32_t tokens = 16'000) {
  v1::GenerateRequest request = Ask("Once upon a time");
  request.mutable_stopping()->set_max_tokens(tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

// Waits until the server refuses new calls because it drains.
inline void AwaitClosed(v1::EtaService::Stub& stub) {
  grpc::Status status;
  do {
    status = ClientCall(stub).Refusal(v1::GenerateRequest());  // never a good one
  } while (ReasonOf(status) != "DRAINING");
}

}  // namespace eta::testing
