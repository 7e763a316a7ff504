// Calls that wait for a profile store which does not answer. Some wait, in turns by tenant; the
// others are refused; and calls that need no store go on.
#include <algorithm>
#include <future>
#include <map>
#include <thread>

#include "gmock/gmock.h"
#include "tests/testing/service/profile_service_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

class BusyStoreTest : public ProfileServiceTest {
 protected:
  void SetUp() override {
    store_ = std::make_unique<FaultyStore>();
    ServerOptions options;
    options.tenant_header = kTenantHeader;
    options.admin_tenants = {"ops"};
    Serve(options);
    Import("legal", 1);
    Import("legal", 1, "other");
    store_->Block();
    Begin("anybody", kThreads);
    while (store_->waiting() < kThreads) std::this_thread::sleep_for(milliseconds(1));
  }
  void TearDown() override {
    store_->Release();
    for (auto& [tenant, calls] : calls_) {
      for (auto& call : calls) call.wait();
    }
    ProfileServiceTest::TearDown();
  }

  static constexpr int kThreads = 4;  // the server's threads for calls of the store
  static constexpr int kShare = 60;   // a tenant's share of the calls that may wait

  // Begins calls, at most as many per connection as it has streams.
  void Begin(const std::string& tenant, int count) {
    for (int i = 0; i < count; ++i) {
      if (begun_++ % 50 == 0) stubs_.push_back(v1::ProfileService::NewStub(NewChannel()));
      Stub* const stub = stubs_.back().get();
      calls_[tenant].push_back(std::async(std::launch::async, [stub, tenant] {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + seconds(60));
        context.AddMetadata(kTenantHeader, tenant);
        v1::Profile profile;
        return stub->GetProfile(&context, GetRequest("legal"), &profile);
      }));
    }
  }
  // The number of the tenant's calls that have ended.
  int Ended(const std::string& tenant) {
    return static_cast<int>(
        std::count_if(calls_[tenant].begin(), calls_[tenant].end(), [](const auto& call) {
          return call.wait_for(milliseconds(0)) == std::future_status::ready;
        }));
  }
  // Returns when all but `left` of a tenant's calls were refused.
  void AwaitRefusals(const std::string& tenant, int left) {
    while (Ended(tenant) < static_cast<int>(calls_[tenant].size()) - left) {
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  // The number of a tenant's calls that were served. The others were refused for want of room.
  int Served(const std::string& tenant) {
    int served = 0;
    for (auto& call : calls_[tenant]) {
      const grpc::Status status = call.get();
      if (status.ok()) {
        ++served;
      } else {
        EXPECT_THAT(status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"));
      }
    }
    calls_[tenant].clear();
    return served;
  }

  std::vector<std::unique_ptr<Stub>> stubs_;
  int begun_ = 0;
  std::map<std::string, std::vector<std::future<grpc::Status>>> calls_;
};

TEST_F(BusyStoreTest, CallsThatCannotWaitForTheStoreAreRefused) {
  Begin("anybody", 90);
  AwaitRefusals("anybody", kThreads + kShare);
  ExpectGoodCall({{kTenantHeader, "anybody"}});  // needs no store
  store_->Release();
  EXPECT_EQ(Served("anybody"), kThreads + kShare);
}

TEST_F(BusyStoreTest, ATenantThatFloodsLeavesRoomForTheOthers) {
  Begin("anybody", 90);
  AwaitRefusals("anybody", kThreads + kShare);
  Begin("other", 10);
  v1::EtaService::Stub stats(channel_);
  const auto waiting = [&] {
    grpc::ClientContext context;
    context.AddMetadata(kTenantHeader, "ops");
    v1::Stats answer;
    EXPECT_TRUE(stats.Stats(&context, v1::StatsRequest(), &answer).ok());
    EXPECT_EQ(answer.store_calls().max_waiting(), 128);
    return answer.store_calls().waiting();
  };
  while (waiting() < kShare + 10) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(Ended("other"), 0);
  store_->Release();
  EXPECT_EQ(Served("other"), 10);
  EXPECT_EQ(Served("anybody"), kThreads + kShare);
}

TEST_F(BusyStoreTest, ManyThatFloodLeavePlacesForOperators) {
  for (int i = 0; i < 130; ++i) Begin("t" + std::to_string(i), 1);
  int refused = 0;
  while (refused < 10) {
    refused = 0;
    for (int i = 0; i < 130; ++i) refused += Ended("t" + std::to_string(i));
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_EQ(refused, 10) << "120 of 128 places are theirs";
  Begin("ops", 1);
  Begin("late", 1);
  AwaitRefusals("late", 0);
  EXPECT_EQ(Ended("ops"), 0);
  EXPECT_EQ(Served("late"), 0);
  store_->Release();
  calls_["ops"].front().wait();
  EXPECT_EQ(ReasonOf(calls_["ops"].front().get()), "PROFILE_NOT_FOUND");
  calls_["ops"].clear();
}

}  // namespace
}  // namespace eta::testing
