// The wall clock jumps by a day, forth and back, under a server that works: row 64 of the table of
// bad inputs. Deadlines, answers, the order of versions and what request ids are known are the
// same.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/integration/replica.h"
#include "tests/testing/environment.h"
#include "tests/testing/error_details.h"
#include "tests/testing/tiny_model.h"
#include "tests/unit/temp_folder.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;

class ClockJump : public ::testing::Test {
 protected:
  void SetUp() override {
    const Environment preload("LD_PRELOAD", ETA_SHIFTED_CLOCK_LIBRARY);
    const Environment clock("ETA_SHIFTED_CLOCK", clock_);
    const Environment asan("ASAN_OPTIONS", "verify_asan_link_order=0");
    server_ = std::make_unique<Replica>(model_.path(), folder_.path() + "/profiles.db");
    ASSERT_TRUE(server_->up()) << server_->process().AwaitExit().errors;
  }
  void Shift(int64_t seconds) const {
    std::rename(folder_.Write("clock.new", std::to_string(seconds)).c_str(), clock_.c_str());
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

  const TinyModel model_;
  const TempFolder folder_;
  const std::string clock_ = folder_.path() + "/clock";
  std::unique_ptr<Replica> server_;
  std::string json_;
  int64_t created_ = 0;
};

constexpr int64_t kDay = 24 * 60 * 60;

TEST_F(ClockJump, ChangesNothingButTheTimesThatAreShown) {
  ASSERT_TRUE(server_->Calibrate(SmallCalibration("legal")).has_value())
      << server_->status.error_message();
  json_ = server_->Export("legal");
  EXPECT_EQ(Import("first"), 2);
  const int64_t today = created_;
  int64_t version = 2;
  for (const int64_t shift : {kDay, -kDay, int64_t{0}}) {
    SCOPED_TRACE(shift);
    v1::GenerateRequest request = Ask("Once upon a time");
    request.mutable_stopping()->set_max_tokens(500);
    request.mutable_stopping()->set_ignore_eos(true);
    ClientCall running(*server_->stub);
    running.Start(request);
    EXPECT_TRUE(running.Read().has_started());
    Shift(shift);
    running.ReadText();
    EXPECT_TRUE(running.Finish().ok()) << "its deadline is 20 s away, as before";
    EXPECT_EQ(running.finished.usage().output_tokens(), 500);
    EXPECT_EQ(server_->Generate("legal").profile_version(), version)
        << server_->status.error_message();
    // A deadline that passes, passes when it did.
    request.mutable_stopping()->set_max_tokens(900);
    ClientCall late(*server_->stub);
    late.context.set_deadline(std::chrono::system_clock::now() + milliseconds(20));
    late.Start(request);
    late.ReadText();
    EXPECT_EQ(late.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
    // Versions go on, whatever time they bear. (A jump back reaches abseil's clock a second or two
    // later.)
    do {
      EXPECT_EQ(Import("version-" + std::to_string(version)), version + 1)
          << server_->status.error_message();
      ++version;
      std::this_thread::sleep_for(milliseconds(100));
    } while (std::abs(created_ - today - shift) > 600 && !HasFailure());
    // What a request id stands for is known.
    EXPECT_EQ(Import("first"), 2) << server_->status.error_message();
    EXPECT_EQ(server_->Get("legal").version(), version);
  }
  const std::vector<int64_t> versions = server_->Versions("legal");
  EXPECT_EQ(static_cast<int64_t>(versions.size()), version);
  EXPECT_TRUE(std::is_sorted(versions.rbegin(), versions.rend())) << "newest first";
  server_->process().Signal(SIGTERM);
  EXPECT_EQ(server_->process().AwaitExit().code, 0);
}

}  // namespace
}  // namespace eta::testing
