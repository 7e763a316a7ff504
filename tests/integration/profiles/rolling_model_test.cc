// A fleet changes from one model to the next: two servers, two models, one store. No call fails.
#include <atomic>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/profiles/store_case.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using ::testing::IsEmpty;

// Clients that ask for one profile after the other, at the servers that are in service.
class Callers {
 public:
  ~Callers() { Stop(); }

  void Add(const Replica& server) {
    const std::lock_guard lock(mutex_);
    addresses_.push_back(server.address());
  }
  // Returns once no call to it is under way.
  void Remove(const Replica& server) {
    const std::lock_guard lock(mutex_);
    std::erase(addresses_, server.address());
  }
  void Begin() {
    for (const char* const profile : {"legal", "legal@stable"}) {
      threads_.emplace_back([this, profile] {
        while (!stopped_) {
          CallEach(profile);
          std::this_thread::sleep_for(std::chrono::milliseconds(1));  // others want the lock
        }
      });
    }
  }
  void Stop() {
    stopped_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  // What calls failed with.
  std::vector<std::string> failures() const {
    const std::lock_guard lock(mutex_);
    return failures_;
  }
  // The calls that a server answered with a version.
  int answers(const Replica& server, int64_t version) const {
    const std::lock_guard lock(mutex_);
    const auto found = answers_.find({server.address(), version});
    return found == answers_.end() ? 0 : found->second;
  }

 private:
  // Holds the lock, so that a server that leaves service has no calls any more.
  void CallEach(const std::string& profile) {
    const std::lock_guard lock(mutex_);
    for (const std::string& address : addresses_) {
      const auto stub =
          v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
      v1::GenerateRequest request = Ask("The quick brown fox");
      request.mutable_stopping()->set_max_tokens(4);
      request.mutable_stopping()->set_ignore_eos(true);
      request.mutable_attention()->set_profile(profile);
      ClientCall call(*stub);
      call.Start(request);
      const int64_t version = call.Read().started().attention().profile_version();
      call.ReadText();
      const grpc::Status status = call.Finish();
      if (status.ok()) {
        ++answers_[{address, version}];
      } else {
        failures_.push_back(profile + ": " + status.error_message());
      }
    }
  }

  mutable std::mutex mutex_;
  std::vector<std::string> addresses_;
  std::map<std::pair<std::string, int64_t>, int> answers_;
  std::vector<std::string> failures_;
  std::atomic<bool> stopped_ = false;
  std::vector<std::thread> threads_;
};

class RollingModelTest : public ::testing::TestWithParam<StoreKind> {
 protected:
  RollingModelTest() : place_(GetParam()) {}
  void SetUp() override {
    if (!place_.missing().empty()) GTEST_SKIP() << place_.missing();
  }

  static grpc::Status SetStable(Replica& server, int64_t version, int64_t expected) {
    v1::SetProfileAliasRequest request;
    request.set_name("legal");
    request.set_alias("stable");
    request.set_version(version);
    request.set_expected_version(expected);
    grpc::ClientContext context;
    v1::SetProfileAliasResponse response;
    return server.profiles->SetProfileAlias(&context, request, &response);
  }
  static grpc::Status Promote(Replica& server, int64_t version, int64_t expected) {
    v1::PromoteProfileRequest request;
    request.set_name("legal");
    request.set_version(version);
    request.set_expected_version(expected);
    grpc::ClientContext context;
    v1::PromoteProfileResponse response;
    return server.profiles->PromoteProfile(&context, request, &response);
  }
  static grpc::Status DeleteVersion(Replica& server, int64_t version) {
    v1::DeleteProfileVersionRequest request;
    request.set_name("legal");
    request.set_version(version);
    grpc::ClientContext context;
    v1::DeleteProfileVersionResponse response;
    return server.profiles->DeleteProfileVersion(&context, request, &response);
  }

  const TinyModel old_model_{{.seed = 1}};
  const TinyModel new_model_{{.seed = 2}};
  const StorePlace place_;
};
INSTANTIATE_TEST_SUITE_P(Stores, RollingModelTest,
                         ::testing::Values(StoreKind::kSqlite, StoreKind::kPostgres),
                         StoreKindName);

TEST_P(RollingModelTest, NoCallFailsWhileAFleetChangesItsModel) {
  Replica old_server(old_model_.path(), place_.url());
  ASSERT_TRUE(old_server.up()) << old_server.process().AwaitExit().errors;
  ASSERT_TRUE(old_server.Calibrate(SmallCalibration("legal")).has_value())
      << old_server.status.error_message();
  ASSERT_TRUE(SetStable(old_server, 1, 0).ok());
  Callers callers;
  callers.Add(old_server);
  callers.Begin();

  // The new server takes no traffic until its profile is there.
  Replica new_server(new_model_.path(), place_.url());
  ASSERT_TRUE(new_server.up()) << new_server.process().AwaitExit().errors;
  new_server.Generate("legal");
  EXPECT_EQ(ReasonOf(new_server.status), "PROFILE_MISMATCH");
  EXPECT_EQ(new_server.Get("legal@1").version(), 1);
  v1::CalibrateRequest request = SmallCalibration("legal");
  request.set_stage(true);
  const auto staged = new_server.Calibrate(request);
  ASSERT_TRUE(staged.has_value()) << new_server.status.error_message();
  EXPECT_TRUE(staged->staged());
  EXPECT_EQ(new_server.Generate("legal@2").profile_version(), 2) << "tried before it is the newest";
  new_server.Generate("legal");
  EXPECT_EQ(ReasonOf(new_server.status), "PROFILE_MISMATCH") << "still";
  ASSERT_TRUE(Promote(new_server, 2, 0).ok());
  ASSERT_TRUE(SetStable(new_server, 2, 0).ok()) << "beside what it names for the old model";
  EXPECT_EQ(new_server.Generate("legal").profile_version(), 2) << "at once";

  // Both serve for a while, each its own version; then the old one goes.
  const int before = callers.answers(old_server, 1);
  callers.Add(new_server);
  EXPECT_TRUE(Eventually([&] {
    return callers.answers(old_server, 1) > before + 20 && callers.answers(new_server, 2) > 20;
  }));
  callers.Remove(old_server);
  old_server.process().Signal(SIGTERM);
  EXPECT_EQ(old_server.process().AwaitExit().code, 0);
  const int alone = callers.answers(new_server, 2);
  EXPECT_TRUE(Eventually([&] { return callers.answers(new_server, 2) > alone + 20; }));
  callers.Stop();
  EXPECT_THAT(callers.failures(), IsEmpty());
  EXPECT_EQ(callers.answers(old_server, 2) + callers.answers(new_server, 1), 0);

  // The old model's versions are there for a way back, until they are taken away.
  Replica again(old_model_.path(), place_.url());
  ASSERT_TRUE(again.up()) << again.process().AwaitExit().errors;
  EXPECT_EQ(again.Generate("legal@stable").profile_version(), 1) << again.status.error_message();
  EXPECT_EQ(ReasonOf(DeleteVersion(new_server, 1)), "VERSION_HAS_ALIAS");
  ASSERT_TRUE(SetStable(new_server, 0, 1).ok());
  ASSERT_TRUE(DeleteVersion(new_server, 1).ok());
  EXPECT_EQ(new_server.Generate("legal@stable").profile_version(), 2);
  EXPECT_TRUE(Eventually([&] {
    again.Generate("legal");
    return ReasonOf(again.status) == "PROFILE_MISMATCH";
  }));
}

}  // namespace
}  // namespace eta::testing
