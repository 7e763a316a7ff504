// PostgreSQL servers that take what they are sent and do not answer.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "calibration/profiles/store/sql/postgres_database.h"
#include "calibration/profiles/store/sql/sql_profile_store.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/profiles/postgres_client.h"
#include "tests/testing/profiles/postgres_relay.h"
#include "tests/testing/profiles/postgres_store_fixture.h"

namespace eta {
namespace {

using absl::StatusCode;

constexpr std::chrono::seconds kSilence{3};

class PostgresSilence : public PostgresStoreFixture {
 protected:
  void SetUp() override {
    PostgresStoreFixture::SetUp();
    if (server_ != nullptr) relay_ = std::make_unique<PostgresRelay>(server_->socket_folder());
  }
  std::unique_ptr<ProfileStore> OpenThroughRelay(
      const ProfileStoreOptions& options = StorePlace::FastOptions()) {
    auto database = PostgresDatabase::Open(relay_->Through(url_), options.busy_timeout, kSilence);
    EXPECT_TRUE(database.ok()) << database.status();
    return std::make_unique<SqlProfileStore>(*std::move(database), options);
  }
  // A store that does nothing but what it is asked.
  std::unique_ptr<ProfileStore> OpenUnpolled() {
    ProfileStoreOptions options = StorePlace::FastOptions();
    options.poll_interval = std::chrono::hours(1);
    return OpenThroughRelay(options);
  }
  // Whether `call` gives the server up; else the relay ends its wait.
  bool Ends(const std::function<void()>& call) {
    const std::future<void> end = std::async(std::launch::async, call);
    const bool ended = end.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
    if (!ended) relay_->HangUp();
    return ended;
  }
  absl::Status Get(const ProfileStore& store) {
    absl::Status status;
    EXPECT_TRUE(Ends([&] { status = store.Get(kAcme, "legal", Newest()).status(); }));
    return status;
  }
  absl::Status Put(ProfileStore& store, const std::string& request_id) {
    PutProfile put = MakePut("legal", 1);
    put.request_id = request_id;
    if (!request_id.empty()) put.payload_digest = std::string(64, '1');
    absl::Status status;
    EXPECT_TRUE(Ends([&] { status = store.Put(kAcme, put).status(); }));
    return status;
  }

  std::unique_ptr<PostgresRelay> relay_;
};

TEST_F(PostgresSilence, ASilentServerIsUnavailableAndComesBack) {
  const auto store = OpenThroughRelay();
  const auto other = Open();
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  relay_->Silence();
  for (const absl::Status& status : {Get(*store), Put(*store, "")}) {
    EXPECT_THAT(status, FailsFor(StatusCode::kUnavailable, "STORE_UNAVAILABLE"));
    EXPECT_TRUE(GetErrorDetail(status).retry_after.has_value());
  }
  EXPECT_EQ(store->Health().code(), StatusCode::kUnavailable);
  relay_->Mend();
  EXPECT_TRUE(Eventually([&] { return store->Put(kAcme, MakePut("legal", 2)).ok(); }));
  EXPECT_TRUE(Eventually([&] { return store->Health().ok(); })) << store->Health();
  // The thread that looks for changes is back too.
  std::atomic<bool> told = false;
  const auto watch = store->Watch([&](const ProfileChange& change) {
    if (!change.tenant || change.name == "other") told = true;
  });
  ASSERT_TRUE(other->Put(kAcme, MakePut("other", 1)).ok());
  EXPECT_TRUE(Eventually([&] { return told.load(); }));
}

// The waits of callers one after the other would add up.
TEST_F(PostgresSilence, OneCallerWaitsForAllConnections) {
  const auto store = OpenUnpolled();
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  {
    PostgresClient holder(url_), admin(server_->AdminUrl(url_));
    holder("BEGIN; SELECT * FROM eta_store FOR UPDATE");
    std::vector<std::future<absl::Status>> puts;
    for (const char* name : {"a", "b"}) {
      puts.push_back(std::async(std::launch::async, [&store, name] {
        return store->Put(kAcme, MakePut(name, 1)).status();
      }));
    }
    ASSERT_TRUE(Eventually([&] {
      return admin("SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == "2";
    }));
    holder("ROLLBACK");
    for (auto& put : puts) ASSERT_TRUE(put.get().ok());
  }
  relay_->Silence();
  EXPECT_EQ(Reason(Get(*store)), "STORE_UNAVAILABLE");
  EXPECT_EQ(Reason(store->Health()), "STORE_UNAVAILABLE");
  relay_->Mend();
  EXPECT_TRUE(Get(*store).ok());
  EXPECT_TRUE(store->Health().ok()) << store->Health();
}

TEST_F(PostgresSilence, ACommitWithoutAnAnswerIsResolvedByTheRequestId) {
  const auto store = OpenThroughRelay();
  relay_->Arm(PostgresRelay::kFallSilent);
  EXPECT_TRUE(Put(*store, "r1").ok());
  relay_->Arm(PostgresRelay::kFallSilent);
  EXPECT_EQ(Reason(Put(*store, "")), "OUTCOME_UNKNOWN");
  // Those who look for changes are answered, and nobody else asks.
  EXPECT_TRUE(Eventually([&] { return store->Health().ok(); })) << store->Health();
  EXPECT_EQ(store->Get(kAcme, "legal", Newest()).value()->version, 2);
}

TEST_F(PostgresSilence, AStoreEndsWhileItsLookWaits) {
  auto store = OpenThroughRelay();
  ASSERT_TRUE(Eventually([&] { return store->Use(kAcme).has_value(); })) << "the first look";
  relay_->Silence();
  ASSERT_TRUE(Eventually([&] { return relay_->dropped() > 0; }));
  EXPECT_TRUE(Ends([&] { store.reset(); }));
}

TEST_F(PostgresSilence, WhatTheSocketDoesNotHoldAtOnceComesWhole) {
  const auto connection =
      PostgresConnection::Open(url_, std::chrono::seconds(5), std::chrono::seconds(60)).value();
  const std::string bytes(size_t{8} << 20, 'x');
  const auto rows = connection->Run("SELECT $1::bytea", std::vector<SqlValue>{SqlBytes{bytes}});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_TRUE(std::get<SqlBytes>((*rows)[0][0]).bytes == bytes);
}

}  // namespace
}  // namespace eta
