// Answers that nobody reads, at the built server: a peer that keeps its window shut is cut off in
// time, what its answers held comes back, and it costs nobody else an answer.
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "calibration/profiles/profile_json.h"
#include "eta/v1/profiles.grpc.pb.h"
#include "eta/v1/service.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/identity/tenant_header.h"
#include "tests/testing/net/http2_peer.h"
#include "tests/testing/process/sanitized.h"
#include "tests/testing/process/server_process.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kExportProfile[] = "/eta.v1.ProfileService/ExportProfile";
constexpr char kStats[] = "/eta.v1.EtaService/Stats";
constexpr int kStreams = 100;  // of a connection
constexpr int kPeers = 4;

class UnreadAnswerTest : public ::testing::Test {
 protected:
  UnreadAnswerTest()
      : server_(ETA_BINARY_DIR "/eta-server",
                {"--model", ETA_SOURCE_DIR "/models/eta-27m", "--listen", "127.0.0.1:0",
                 "--kv_pool_bytes", "32MiB", "--profile_store", folder_.path() + "/p.db",
                 "--tenant_header", kTenantHeader, "--admin_tenants", "ops",
                 "--slow_reader_timeout", "2s"}) {}
  void SetUp() override {
    address_ = server_.AwaitAddress();
    ASSERT_NE(address_, "") << server_.AwaitExit().errors;
    const auto channel = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
    profiles_ = v1::ProfileService::NewStub(channel);
    stats_ = v1::EtaService::NewStub(channel);
  }
  void TearDown() override {
    server_.Signal(SIGTERM);
    const ServerProcess::Exit exit = server_.AwaitExit();
    EXPECT_EQ(exit.code, 0) << exit.errors;
  }

  static void Prepare(grpc::ClientContext& context, const std::string& tenant) {
    context.AddMetadata(kTenantHeader, tenant);
    context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  }
  // Imports the largest possible profile. Returns the size of its file.
  size_t ImportLarge(const std::string& tenant) {
    const auto json = ProfileToJson(
        {.name = "large", .version = 1, .create_time_us = 1, .content = MakeContent(1, 256, 256)});
    EXPECT_TRUE(json.ok()) << json.status();
    v1::ImportProfileRequest request;
    request.set_json(*json);
    grpc::ClientContext context;
    Prepare(context, tenant);
    v1::Profile profile;
    const grpc::Status status = profiles_->ImportProfile(&context, request, &profile);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return json->size();
  }
  static std::string ExportRequest() {
    v1::ExportProfileRequest request;
    request.set_profile("large@1");  // of another model than the served one
    return request.SerializeAsString();
  }
  grpc::Status List(const std::string& tenant) {
    grpc::ClientContext context;
    Prepare(context, tenant);
    v1::ListProfilesResponse response;
    return profiles_->ListProfiles(&context, {}, &response);
  }
  v1::PressureStats Pressure() {
    grpc::ClientContext context;
    Prepare(context, "ops");
    v1::Stats stats;
    const grpc::Status status = stats_->Stats(&context, {}, &stats);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stats.pressure();
  }
  // Makes as many calls as a connection allows and reads no byte of their answers.
  std::unique_ptr<Http2Peer> Hold(const char* method, const std::string& request,
                                  const std::string& tenant) {
    auto peer = std::make_unique<Http2Peer>(address_, Http2Peer::NoWindow());
    EXPECT_TRUE(peer->connected());
    for (uint32_t i = 0; i < kStreams; ++i) {
      peer->Call(2 * i + 1, method, {{kTenantHeader, tenant}});
      peer->Message(2 * i + 1, request, /*end_stream=*/true);
    }
    return peer;
  }
  // Until so many answers were cut off, however busy the machine is.
  ::testing::AssertionResult AwaitCutOff(int64_t answers) {
    v1::PressureStats pressure;
    for (int i = 0; i < 6000; ++i) {
      pressure = Pressure();
      if (pressure.answers_cut_off() >= answers) return ::testing::AssertionSuccess();
      std::this_thread::sleep_for(milliseconds(10));
    }
    return ::testing::AssertionFailure() << pressure.ShortDebugString();
  }

  const TempFolder folder_;
  ServerProcess server_;
  std::string address_;
  std::unique_ptr<v1::ProfileService::Stub> profiles_;
  std::unique_ptr<v1::EtaService::Stub> stats_;
};

TEST_F(UnreadAnswerTest, WhatNobodyReadsIsCutOffAndGivenBack) {
  const size_t answer = ImportLarge("hostile");
  ASSERT_GT(answer, size_t{512} << 10);
  server_.ForgetPeakMemory();
  const int64_t before = server_.PeakMemory();
  std::vector<std::unique_ptr<Http2Peer>> peers;
  for (int i = 0; i < kPeers; ++i) {
    peers.push_back(Hold(kExportProfile, ExportRequest(), "hostile"));
  }
  EXPECT_TRUE(List("honest").ok());
  // A call that finds no thread and no place to wait for the store is refused: it has no answer.
  EXPECT_TRUE(AwaitCutOff(kStreams / 2));
  EXPECT_TRUE(List("honest").ok());
  EXPECT_TRUE(List("hostile").ok());
  const int64_t growth_kb = server_.PeakMemory() - before;
  std::printf("%d answers of %zu KB that nobody read held %ld KB at most\n", kPeers * kStreams,
              answer / 1024, static_cast<long>(growth_kb));
  if (!kAddressSanitizer) {
    EXPECT_LE(growth_kb, static_cast<int64_t>(kPeers * kStreams * 2 * answer / 1024));
  }

  // The peer sees the end of the calls that were answered. Its connection works as before.
  Http2Peer& peer = *peers.front();
  const auto frames = peer.ReadStream(1);
  ASSERT_FALSE(frames.empty());
  EXPECT_EQ(frames.back().type, Http2Peer::kHeaders);
  EXPECT_TRUE(frames.back().flags & Http2Peer::kEndStream);
  const uint32_t next = 2 * kStreams + 1;
  peer.Widen(next, 1 << 20);
  peer.Call(next, kStats, {{kTenantHeader, "hostile"}});
  peer.Widen(next, 1 << 20);
  peer.Message(next, "", /*end_stream=*/true);
  const auto good = peer.ReadStream(next);
  ASSERT_FALSE(good.empty());
  EXPECT_TRUE(good.back().type == Http2Peer::kHeaders);

  // The next round needs no more than the first did: nothing of that was kept.
  peers.clear();
  const int64_t first_round = Pressure().answers_cut_off();
  server_.ForgetPeakMemory();
  peers.push_back(Hold(kExportProfile, ExportRequest(), "hostile"));
  EXPECT_TRUE(AwaitCutOff(first_round + kStreams / 4));
  if (!kAddressSanitizer) {
    EXPECT_LE(server_.PeakMemory(), before + growth_kb + 32 * 1024);
  }
}

TEST_F(UnreadAnswerTest, SoAreAnswersThatAreAlwaysGiven) {
  std::vector<std::unique_ptr<Http2Peer>> peers;
  for (int i = 0; i < kPeers; ++i) peers.push_back(Hold(kStats, "", "hostile"));
  EXPECT_TRUE(List("honest").ok());
  EXPECT_TRUE(AwaitCutOff(kPeers * kStreams));
}

}  // namespace
}  // namespace eta::testing
