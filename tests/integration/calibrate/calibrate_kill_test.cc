// Kills servers at any moment of calibrations and commits. Whatever was acknowledged is there,
// whole, and each request makes one version however often it is repeated.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/process/sanitized.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

constexpr char kCalibrated[] = "calibrated";
constexpr char kImported[] = "imported";
constexpr int kMostImports = 200;  // a tenant may have 1,000 versions
// A store must be open again within 2 s after its server was killed. Sanitizers and a busy machine
// take longer.
std::chrono::seconds ServingAgainWithin() {
  if (kAddressSanitizer) return std::chrono::seconds(30);
  return std::chrono::seconds(LongRun() ? 2 : 8);
}

// Imports one version after the other until the server is gone.
class Importer {
 public:
  Importer(v1::ProfileService::Stub& stub, const std::string& json)
      : thread_([this, &stub, json] { Run(stub, json); }) {}

  // Returns the acknowledged profiles.
  std::vector<v1::Profile> Join() {
    thread_.join();
    return std::move(acknowledged_);
  }

 private:
  void Run(v1::ProfileService::Stub& stub, const std::string& json) {
    v1::ImportProfileRequest request;
    request.set_json(json);
    request.set_name(kImported);
    for (int i = 0; i < kMostImports; ++i) {
      grpc::ClientContext context;
      v1::Profile profile;
      if (!stub.ImportProfile(&context, request, &profile).ok()) return;
      acknowledged_.push_back(std::move(profile));
    }
  }

  std::vector<v1::Profile> acknowledged_;
  std::thread thread_;  // last member: it uses the others
};

// The moment at which a server is killed.
enum class Moment { kCollect, kSolve, kSearch, kVerify, kStore, kAnswer };
constexpr Moment kMoments[] = {Moment::kStore,  Moment::kCollect, Moment::kStore, Moment::kSolve,
                               Moment::kAnswer, Moment::kSearch,  Moment::kStore, Moment::kVerify};

// True at the moment, or after it if messages on the way were merged.
bool Reached(Moment moment, const v1::CalibrateResponse& message) {
  if (message.has_profile()) return true;
  const auto phase = message.progress().phase();
  switch (moment) {
    case Moment::kCollect:
      return phase >= v1::CALIBRATION_PHASE_COLLECT;
    case Moment::kSolve:
      return phase >= v1::CALIBRATION_PHASE_SOLVE;
    case Moment::kSearch:
      return phase >= v1::CALIBRATION_PHASE_SEARCH;
    case Moment::kVerify:
    case Moment::kStore:
      return phase >= v1::CALIBRATION_PHASE_VERIFY;
    case Moment::kAnswer:
      return false;
  }
  return false;
}

class CalibrateKillTest : public ::testing::Test {
 protected:
  std::unique_ptr<Replica> Start() const {
    auto server = std::make_unique<Replica>(model_.path(), store_);
    EXPECT_TRUE(server->up()) << server->process().AwaitExit().errors;
    return server;
  }

  static v1::CalibrateRequest Request(int round) {
    v1::CalibrateRequest request = SmallCalibration(kCalibrated);
    request.set_request_id("round-" + std::to_string(round));
    return request;
  }

  // Kills the server in this calibration. Returns the profile if it was acknowledged.
  std::optional<v1::Profile> KillIn(Replica& server, const v1::CalibrateRequest& request,
                                    Moment moment) {
    grpc::ClientContext context;
    const auto reader = server.stub->Calibrate(&context, request);
    std::optional<v1::Profile> profile;
    v1::CalibrateResponse message;
    bool killed = false;
    while (reader->Read(&message)) {
      if (message.has_profile()) profile = message.profile();
      if (killed || !Reached(moment, message)) continue;
      if (moment == Moment::kStore) {
        std::this_thread::sleep_for(from_verifying_ *
                                    std::uniform_real_distribution<>(0, 1.2)(random_));
      }
      server.process().Signal(SIGKILL);
      killed = true;
    }
    server.process().Signal(SIGKILL);  // in case the calibration was faster
    server.process().AwaitExit();
    return profile;
  }

  // Runs once undisturbed, to get the profile to import and the times of verifying and storing.
  v1::Profile Measure(Replica& server) {
    grpc::ClientContext context;
    const auto reader = server.stub->Calibrate(&context, SmallCalibration(kCalibrated));
    v1::CalibrateResponse message;
    auto verifying = steady_clock::time_point::max();
    while (reader->Read(&message) && !message.has_profile()) {
      if (Reached(Moment::kVerify, message)) verifying = std::min(verifying, steady_clock::now());
    }
    from_verifying_ = steady_clock::now() - verifying;
    EXPECT_TRUE(reader->Finish().ok());
    return message.profile();
  }

  // Expects every one of `acknowledged`, whole. A name may have further versions, also whole, up to
  // a limit.
  static std::vector<v1::Profile> ExpectAll(Replica& server, const std::string& name,
                                            const std::vector<v1::Profile>& acknowledged,
                                            size_t most_more) {
    std::vector<v1::Profile> more;
    for (const int64_t version : server.Versions(name)) {
      const v1::Profile profile = server.Get(name + "@" + std::to_string(version));
      EXPECT_TRUE(server.status.ok()) << version << ": " << server.status.error_message();
      const auto known = std::find_if(acknowledged.begin(), acknowledged.end(),
                                      [&](const auto& a) { return a.version() == version; });
      if (known == acknowledged.end()) {
        more.push_back(profile);
      } else {
        EXPECT_EQ(profile.SerializeAsString(), known->SerializeAsString()) << version;
      }
    }
    EXPECT_LE(more.size(), most_more);
    EXPECT_EQ(server.Versions(name).size(), acknowledged.size() + more.size());
    return more;
  }

  const TinyModel model_;
  const TempFolder folder_{FastParent()};
  const std::string store_ = folder_.path() + "/profiles.db";
  std::mt19937 random_{1};
  std::chrono::duration<double> from_verifying_{0};
};

TEST_F(CalibrateKillTest, NothingAcknowledgedIsLostAndNothingIsHalfStored) {
  auto server = Start();
  std::vector<v1::Profile> calibrated = {Measure(*server)};
  const std::string json = server->Export(kCalibrated);
  int acknowledged = 0;
  int stored_unacknowledged = 0;
  int imports = 0;
  steady_clock::duration longest{0};
  for (int round = 0; round < Rounds(8, 200); ++round) {
    SCOPED_TRACE(round);
    const v1::CalibrateRequest request = Request(round);
    Importer importer(*server->profiles, json);
    const auto profile = KillIn(*server, request, kMoments[round % std::size(kMoments)]);
    const std::vector<v1::Profile> imported = importer.Join();
    imports += static_cast<int>(imported.size());
    if (profile) {
      calibrated.push_back(*profile);
      ++acknowledged;
    }

    const auto killed = steady_clock::now();
    server = Start();
    ASSERT_TRUE(server->up());
    longest = std::max(longest, steady_clock::now() - killed);
    stored_unacknowledged += static_cast<int>(ExpectAll(*server, kImported, imported, 1).size());
    const auto more = ExpectAll(*server, kCalibrated, calibrated, profile ? 0 : 1);
    const auto again = server->Calibrate(request);
    ASSERT_TRUE(again.has_value()) << server->status.error_message();
    EXPECT_EQ(again->request_id(), request.request_id());
    if (profile) {
      EXPECT_EQ(again->SerializeAsString(), profile->SerializeAsString());
    } else {
      calibrated.push_back(*again);
      if (!more.empty()) {
        EXPECT_EQ(again->SerializeAsString(), more.front().SerializeAsString());
        ++stored_unacknowledged;
      }
    }
    EXPECT_EQ(server->progress == 0, profile || !more.empty()) << "nothing is computed twice";
    ExpectAll(*server, kCalibrated, calibrated, 0);
    server->Delete(kImported);
    ASSERT_FALSE(HasFailure());
  }
  std::printf(
      "%d calibrations and %d imports acknowledged, %d commits without an answer; serving again "
      "after %.0f ms at most\n",
      acknowledged, imports, stored_unacknowledged,
      std::chrono::duration<double, std::milli>(longest).count());
  EXPECT_LE(longest, ServingAgainWithin());
  // Some kills came after answers, and some between a commit and its answer.
  EXPECT_GT(acknowledged, 0);
  EXPECT_GT(imports, 0);
  if (LongRun()) {
    EXPECT_GT(stored_unacknowledged, 0);
  }
}

}  // namespace
}  // namespace eta::testing
