// A call of any method with raw bytes, step by step: for messages that no generated client sends,
// and for services without generated code here.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"

namespace eta::testing {

class GenericCall {
 public:
  GenericCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method);
  ~GenericCall();

  grpc::ClientContext& context() { return context_; }

  void Start();
  bool Send(const std::string& message);
  void SendsDone();
  std::optional<std::string> Read();  // nullopt: no more messages
  grpc::Status Finish();

  // Start, Send and SendsDone; then reads everything and drops it.
  grpc::Status Exchange(const std::string& message);

 private:
  bool Wait();

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  const std::string method_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

}  // namespace eta::testing
