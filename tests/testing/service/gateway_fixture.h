// A gateway at a server's listener, from the client's side.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace eta::testing {

namespace gateway_pb = ::vllm::grpc::engine;

// A Generate call, message by message.
class GatewayCall {
 public:
  explicit GatewayCall(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(gateway_pb::VllmEngine::NewStub(channel)) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  }

  void Start(const gateway_pb::GenerateRequest& request) {
    reader_ = stub_->Generate(&context, request);
  }
  // An empty one if there are no more.
  gateway_pb::GenerateResponse Read() {
    gateway_pb::GenerateResponse message;
    if (!reader_->Read(&message)) return {};
    return message;
  }
  // What is left: ids of chunks by answer, and the ends.
  void ReadAll() {
    for (auto message = Read();
         message.response_case() != gateway_pb::GenerateResponse::RESPONSE_NOT_SET;
         message = Read()) {
      if (message.has_complete()) completes.push_back(message.complete());
      if (!message.has_chunk()) continue;
      const auto& chunk = message.chunk();
      if (ids.size() <= chunk.index()) ids.resize(chunk.index() + 1);
      ids[chunk.index()].insert(ids[chunk.index()].end(), chunk.token_ids().begin(),
                                chunk.token_ids().end());
      chunks.push_back(chunk);
    }
  }
  grpc::Status Finish() { return reader_->Finish(); }
  grpc::Status Refusal(const gateway_pb::GenerateRequest& request) {
    Start(request);
    ReadAll();
    EXPECT_TRUE(completes.empty() && chunks.empty());
    return Finish();
  }
  std::string Trailer(const std::string& key) const {
    const auto& trailers = context.GetServerTrailingMetadata();
    const auto found = trailers.find(key);
    return found == trailers.end() ? "" : std::string(found->second.data(), found->second.size());
  }

  grpc::ClientContext context;
  std::vector<std::vector<int32_t>> ids;
  std::vector<gateway_pb::GenerateStreamChunk> chunks;
  std::vector<gateway_pb::GenerateComplete> completes;

 private:
  const std::unique_ptr<gateway_pb::VllmEngine::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<gateway_pb::GenerateResponse>> reader_;
};

// A unary call of `method`, such as &Stub::Abort, with the status it ends with.
template <typename Request, typename Response, typename Method>
grpc::Status AskGateway(const std::shared_ptr<grpc::Channel>& channel, Method method,
                        const Request& request, Response& response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const auto stub = gateway_pb::VllmEngine::NewStub(channel);
  return ((*stub).*method)(&context, request, &response);
}

inline gateway_pb::GenerateRequest GatewayRequest(const std::vector<int32_t>& ids,
                                                  bool stream = true) {
  gateway_pb::GenerateRequest request;
  for (const int32_t id : ids)
    request.mutable_tokenized()->add_input_ids(static_cast<uint32_t>(id));
  request.set_stream(stream);
  return request;
}

}  // namespace eta::testing
