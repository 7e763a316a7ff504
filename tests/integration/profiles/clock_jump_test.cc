// The wall clock jumps by a day, forward and back, under a working server. Deadlines, token
// budgets, answers, the order of versions and the memory of request ids do not change.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/net/http2_peer.h"
#include "tests/testing/process/environment.h"
#include "tests/testing/process/live_figures.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;

class ClockJump : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& flags = {}) {
    const Environment preload("LD_PRELOAD", ETA_SHIFTED_CLOCK_LIBRARY);
    const Environment clock("ETA_SHIFTED_CLOCK", clock_);
    const Environment asan("ASAN_OPTIONS", "verify_asan_link_order=0");
    server_ = std::make_unique<Replica>(model_.path(), folder_.path() + "/profiles.db", flags);
    ASSERT_TRUE(server_->up()) << server_->process().AwaitExit().errors;
  }
  void Shift(int64_t by) const {
    std::rename(folder_.Write("clock.new", std::to_string(by)).c_str(), clock_.c_str());
  }
  // Shifts the clock and waits until the server's own clock has jumped. (A jump back reaches
  // abseil's clock a second or two later.)
  void ShiftAndAwait(int64_t by) const {
    const auto begin = std::chrono::steady_clock::now();
    const int64_t today = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    Shift(by);
    while (std::abs(LiveStats(*server_).time().seconds() - today - by) > kHour) {
      ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(2));
      std::this_thread::sleep_for(milliseconds(20));
    }
  }
  int64_t TokensLeft() const {
    const v1::Stats stats = LiveStats(*server_);
    EXPECT_EQ(stats.uses_size(), 1);
    return stats.uses_size() == 1 ? stats.uses(0).tokens_left() : 0;
  }
  static v1::GenerateRequest AskFor(int32_t tokens) {
    v1::GenerateRequest request = Ask("Once upon a time");
    request.mutable_stopping()->set_max_tokens(tokens);
    request.mutable_stopping()->set_ignore_eos(true);
    return request;
  }
  grpc::Status Generate(int32_t tokens) const {
    ClientCall call(*server_->stub);
    call.Start(AskFor(tokens));
    call.ReadText();
    return call.Finish();
  }
  int64_t Import(const std::string& id) {
    grpc::ClientContext context;
    v1::ImportProfileRequest request;
    request.set_json(json_);
    request.set_request_id(id);
    v1::Profile profile;
    server_->status = server_->profiles->ImportProfile(&context, request, &profile);
    created_ = profile.create_time().seconds();
    return profile.version();
  }

  static constexpr int64_t kHour = 60 * 60, kDay = 24 * kHour;

  const TinyModel model_;
  const TempFolder folder_;
  const std::string clock_ = folder_.path() + "/clock";
  std::unique_ptr<Replica> server_;
  std::string json_;
  int64_t created_ = 0;
};

// bad input: Server | the wall clock jumps a day | no deadline, quota or order changes
TEST_F(ClockJump, ChangesNothingButTheTimesThatAreShown) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(server_->Calibrate(SmallCalibration("legal")).has_value())
      << server_->status.error_message();
  json_ = server_->Export("legal");
  EXPECT_EQ(Import("first"), 2);
  const int64_t today = created_;
  int64_t version = 2;
  for (const int64_t shift : {kDay, -kDay, int64_t{0}}) {
    SCOPED_TRACE(shift);
    ClientCall running(*server_->stub);
    running.Start(AskFor(500));
    EXPECT_TRUE(running.Read().has_started());
    Http2Peer late(server_->address());  // only the server keeps its deadline
    ASSERT_TRUE(late.connected());
    const auto begin = std::chrono::steady_clock::now();
    late.Call(1, kGenerateMethod, {{"grpc-timeout", "300m"}});
    late.Message(1, AskFor(12'000).SerializeAsString(), /*end_stream=*/true);
    Shift(shift);
    EXPECT_EQ(Http2Peer::Header(late.ReadStream(1), "grpc-status"),
              std::to_string(StatusCode::DEADLINE_EXCEEDED));
    EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(250));
    running.ReadText();
    EXPECT_TRUE(running.Finish().ok()) << "its deadline is 20 s away, as before";
    EXPECT_EQ(running.finished.usage().output_tokens(), 500);
    EXPECT_EQ(server_->Generate("legal").profile_version(), version)
        << server_->status.error_message();
    // Versions go on, whatever times they carry.
    do {
      EXPECT_EQ(Import("version-" + std::to_string(version)), version + 1)
          << server_->status.error_message();
      ++version;
      std::this_thread::sleep_for(milliseconds(100));
    } while (std::abs(created_ - today - shift) > 600 && !HasFailure());
    // Request ids are still known.
    EXPECT_EQ(Import("first"), 2) << server_->status.error_message();
    EXPECT_EQ(server_->Get("legal").version(), version);
  }
  const std::vector<int64_t> versions = server_->Versions("legal");
  EXPECT_EQ(static_cast<int64_t>(versions.size()), version);
  EXPECT_TRUE(std::is_sorted(versions.rbegin(), versions.rend())) << "newest first";
  server_->process().Signal(SIGTERM);
  EXPECT_EQ(server_->process().AwaitExit().code, 0);
}

// The jump does not bring a day's worth of tokens.
TEST_F(ClockJump, NeitherFillsNorEmptiesATokenBudget) {
  const std::string limits = R"({"default": {"tokens_per_second": 0.01, "burst_tokens": 1000}})";
  ASSERT_NO_FATAL_FAILURE(Start({"--tenants", folder_.Write("tenants", limits)}));
  EXPECT_TRUE(Generate(900).ok());
  for (const int64_t shift : {kDay, -kDay, int64_t{0}}) {
    SCOPED_TRACE(shift);
    const int64_t before = TokensLeft();
    ASSERT_NO_FATAL_FAILURE(ShiftAndAwait(shift));
    EXPECT_NEAR(TokensLeft(), before, 2);
    EXPECT_THAT(Generate(200), FailsWith(StatusCode::RESOURCE_EXHAUSTED, "TENANT_TOKENS"));
    EXPECT_TRUE(Generate(4).ok());
  }
  server_->process().Signal(SIGTERM);
  EXPECT_EQ(server_->process().AwaitExit().code, 0);
}

}  // namespace
}  // namespace eta::testing
