// The built server on one model, and what is expected where it must not start.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

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

}  // namespace eta::testing
