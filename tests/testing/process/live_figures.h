// What a server holds now, from its own Stats.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "eta/v1/service.grpc.pb.h"
#include "gtest/gtest.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {

inline v1::Stats LiveStats(const std::string& address) {
  // A connection that calls share may be dead after a fault.
  const auto stub = v1::EtaService::NewStub(OwnConnection(address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::Stats stats;
  const grpc::Status status = stub->Stats(&context, {}, &stats);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return stats;
}
inline v1::Stats LiveStats(const Replica& server) {
  return LiveStats(server.address());
}

inline bool Idle(const v1::Stats& stats) {
  int held = stats.load().running() + stats.load().waiting();
  for (const v1::DeviceLoad& device : stats.load().devices()) held += device.blocks_used();
  return held == 0;
}

// Waits until no request runs and no KV block is in use. Returns how long that took.
inline std::chrono::milliseconds AwaitIdle(const std::string& address) {
  const auto begin = std::chrono::steady_clock::now();
  while (!::testing::Test::HasFailure() && !Idle(LiveStats(address))) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               begin);
}
inline std::chrono::milliseconds AwaitIdle(const Replica& server) {
  return AwaitIdle(server.address());
}

}  // namespace eta::testing
