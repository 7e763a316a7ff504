// The built server on one model, and what is expected where it must not start.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "grpcpp/create_channel.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {

// On a free port of loopback, with a small pool.
inline ServerProcess ServeModel(const std::string& model,
                                const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {"--model",         model,  "--listen", "127.0.0.1:0",
                                    "--kv_pool_bytes", "64MiB"};
  flags.insert(flags.end(), more.begin(), more.end());
  return ServerProcess(ETA_BINARY_DIR "/eta-server", flags);
}

// Exit code 2, and one line of an error, which has `cause` in it.
inline void ExpectBadStart(ServerProcess server, const std::string& cause) {
  EXPECT_EQ(server.AwaitAddress(), "") << "it listens";
  server.Signal(SIGTERM);  // otherwise a server that took the model would stay
  const ServerProcess::Exit exit = server.AwaitExit();
  EXPECT_EQ(exit.code, 2);
  EXPECT_THAT(exit.errors, ::testing::HasSubstr(cause));
  const std::string error = R"("level":"error")";  // beside warnings of insecure choices
  const size_t first = exit.errors.find(error);
  EXPECT_NE(first, std::string::npos) << exit.errors;
  EXPECT_EQ(exit.errors.find(error, first + 1), std::string::npos) << exit.errors;
}

// The tokens of the rest of an answer.
inline std::vector<int32_t> ReadIds(ClientCall& call) {
  std::vector<int32_t> ids;
  for (v1::GenerateResponse message = call.Read();
       message.event_case() != v1::GenerateResponse::EVENT_NOT_SET; message = call.Read()) {
    const auto& more = message.delta().token_ids();
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

// Four tokens after a prompt; empty if there is no answer.
inline std::vector<int32_t> AnswerOf(const std::string& address) {
  const auto stub =
      v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request = Ask("The tower was built in");
  request.mutable_sampling()->set_temperature(0.0f);
  request.mutable_stopping()->set_max_tokens(4);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_token_ids(true);
  ClientCall call(*stub);
  call.Start(request);
  std::vector<int32_t> ids = ReadIds(call);
  const grpc::Status status = call.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return ids;
}

}  // namespace eta::testing
