// The profile store goes away and comes back, again and again, under traffic. Generate does not
// notice. Writes are refused with the right code and succeed again once it is back.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/process/environment.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/process/sanitized.h"
#include "tests/testing/profiles/postgres_client.h"
#include "tests/testing/profiles/postgres_relay.h"
#include "tests/testing/profiles/postgres_server.h"
#include "tests/testing/profiles/sqlite_client.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The promise is 2 s. Sanitizers and a busy machine take longer.
constexpr std::chrono::seconds kWritesAgain(kAddressSanitizer ? 30 : 5);

// Writes beside the server, one after the other for as long as the object lives. If a disk, and
// with it PostgreSQL's redo log, stands still for seconds, they wait like the server's writes.
class OwnWrites {
 public:
  explicit OwnWrites(std::function<void()> write)
      : thread_([this, write = std::move(write)](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            const auto begin = steady_clock::now();
            write();
            longest_ = std::max(longest_, steady_clock::now() - begin);
            std::this_thread::sleep_for(milliseconds(5));
          }
        }) {}
  // Ends the writes and returns the longest one.
  milliseconds Longest() {
    thread_.request_stop();
    thread_.join();
    return std::chrono::duration_cast<milliseconds>(longest_);
  }

 private:
  steady_clock::duration longest_{};
  std::jthread thread_;
};

// Generates with a profile, one answer after the other, until it is destroyed.
class Traffic {
 public:
  Traffic(const std::string& address, const std::string& profile)
      : stub_(v1::EtaService::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        thread_([this, profile] {
          while (!stop_) {
            v1::GenerateRequest request = Ask("The quick brown fox");
            request.mutable_stopping()->set_max_tokens(4);
            request.mutable_attention()->set_profile(profile);
            ClientCall call(*stub_);
            call.Start(request);
            call.ReadText();
            const grpc::Status status = call.Finish();
            ++(status.ok() ? answers_ : errors_);
            if (!status.ok()) std::cout << status.error_message() << "\n";
          }
        }) {}
  ~Traffic() { Stop(); }

  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int64_t answers() const { return answers_; }
  int64_t errors() const { return errors_; }

 private:
  const std::unique_ptr<v1::EtaService::Stub> stub_;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> answers_ = 0;
  std::atomic<int64_t> errors_ = 0;
  std::thread thread_;
};

class StoreOutage : public ::testing::Test {
 protected:
  // Starts a server on this store with the profile legal@1.
  void Serve(const std::string& store) {
    server_ = std::make_unique<Replica>(model_.path(), store);
    ASSERT_TRUE(server_->up()) << server_->process().AwaitExit().errors;
    ASSERT_TRUE(server_->Calibrate(SmallCalibration("legal")).has_value())
        << server_->status.error_message();
    json_ = server_->Export("legal");
    EXPECT_EQ(server_->Generate("legal@1").profile_version(), 1);
  }
  void ServeSqlite() {
    own_write_ = [this] {
      const SqliteClient own(folder_.path() + "/own.db");
      own("CREATE TABLE IF NOT EXISTS own (at); INSERT INTO own VALUES (1)");
    };
    Serve(sqlite_);
  }
  void ServePostgres() {
    database_ = PostgresServer::Get();
    if (database_ == nullptr) GTEST_SKIP() << PostgresServer::MissingReason();
    url_ = database_->NewDatabase();
    PostgresClient(database_->AdminUrl(url_))("CREATE TABLE own (at timestamptz)");
    own_write_ = [this] {
      PostgresClient(database_->AdminUrl(url_))("INSERT INTO own VALUES (now())");
    };
    Serve(url_);
  }
  void ExpectRefused(StatusCode code, const std::string& reason) {
    EXPECT_EQ(server_->status.error_code(), code) << server_->status.error_message();
    EXPECT_EQ(ReasonOf(server_->status), reason);
  }
  // Returns the time until a write succeeded.
  milliseconds AwaitWrite() {
    const auto begin = steady_clock::now();
    do {
      server_->Import(json_);
    } while (!server_->status.ok() && steady_clock::now() - begin < std::chrono::seconds(60));
    EXPECT_TRUE(server_->status.ok()) << server_->status.error_message();
    return std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin);
  }
  // Repeats `rounds` times: `begin`, refused writes, `end`, a write. Versions go on without a gap.
  void GoThrough(int rounds, const char* what, const std::function<void()>& begin,
                 const std::function<void()>& end, StatusCode code, const std::string& reason) {
    Traffic traffic(server_->address(), "legal@1");
    std::vector<milliseconds> waits;
    milliseconds longest_own(0);
    for (int i = 0; i < rounds; ++i) {
      begin();
      server_->Import(json_);
      ExpectRefused(code, reason);
      const int64_t answers = traffic.answers();
      while (traffic.answers() + traffic.errors() < answers + 3) std::this_thread::yield();
      end();
      OwnWrites own(own_write_);
      waits.push_back(AwaitWrite());
      const milliseconds own_wait = own.Longest();
      EXPECT_LE(waits.back(), own_wait + kWritesAgain) << "round " << i;
      longest_own = std::max(longest_own, own_wait);
    }
    traffic.Stop();
    EXPECT_EQ(traffic.errors(), 0) << "of " << traffic.answers() << " answers";
    std::sort(waits.begin(), waits.end());
    std::cout << rounds << " rounds of " << what << ": " << traffic.answers()
              << " answers, no error; writes back after " << waits[waits.size() / 2].count()
              << " ms (median), " << waits.back().count() << " ms at most, where own writes took "
              << longest_own.count() << " ms at most\n";
    EXPECT_EQ(server_->Get("legal").version(), 1 + rounds) << server_->status.error_message();
  }

  const TinyModel model_;
  const TempFolder folder_;
  const std::string sqlite_ = folder_.path() + "/profiles.db";
  std::function<void()> own_write_;
  PostgresServer* database_ = nullptr;
  std::string url_;
  std::string json_;
  std::unique_ptr<Replica> server_;
};

TEST_F(StoreOutage, RestartsOfPostgres) {
  ASSERT_NO_FATAL_FAILURE(ServePostgres());
  if (IsSkipped()) return;
  GoThrough(
      Rounds(2, 50), "restarts", [this] { database_->Kill(); }, [this] { database_->Start(); },
      StatusCode::UNAVAILABLE, "STORE_UNAVAILABLE");
}

TEST_F(StoreOutage, PostgresIsAwayForLonger) {
  ASSERT_NO_FATAL_FAILURE(ServePostgres());
  if (IsSkipped()) return;
  GoThrough(
      Rounds(1, 20), "outages of 2 s",
      [this] {
        database_->Kill();
        std::this_thread::sleep_for(std::chrono::seconds(2));
      },
      [this] { database_->Start(); }, StatusCode::UNAVAILABLE, "STORE_UNAVAILABLE");
}

TEST_F(StoreOutage, AFullDisk) {
  const Environment preload("LD_PRELOAD", ETA_FAILING_DISK_LIBRARY);
  const Environment disk("ETA_FAILING_DISK", sqlite_);
  const Environment asan("ASAN_OPTIONS", "verify_asan_link_order=0");
  ASSERT_NO_FATAL_FAILURE(ServeSqlite());
  GoThrough(
      Rounds(3, 20), "a full disk", [this] { folder_.Write("profiles.db.fails", "full"); },
      [this] { std::filesystem::remove(sqlite_ + ".fails"); }, StatusCode::RESOURCE_EXHAUSTED,
      "STORE_FULL");
}

// Another process holds SQLite's lock for longer than a writer waits.
TEST_F(StoreOutage, ALockedFile) {
  ASSERT_NO_FATAL_FAILURE(ServeSqlite());
  const SqliteClient other(sqlite_);
  GoThrough(
      Rounds(1, 10), "a locked file", [&] { other("BEGIN IMMEDIATE"); }, [&] { other("ROLLBACK"); },
      StatusCode::UNAVAILABLE, "STORE_BUSY");
}

// Also what a client sees of a statement that takes too long.
TEST_F(StoreOutage, ConflictsOfPostgresAreTriedAgainAndThenTold) {
  ASSERT_NO_FATAL_FAILURE(ServePostgres());
  if (IsSkipped()) return;
  PostgresClient admin(database_->AdminUrl(url_));
  admin("CREATE SEQUENCE tries; GRANT ALL ON tries TO eta");
  for (const char* state : {"40001", "40P01"}) {
    SCOPED_TRACE(state);
    const auto fail_unless = [&](const char* condition) {
      admin(
          "DROP TRIGGER IF EXISTS fail ON eta_profiles; ALTER SEQUENCE tries RESTART;"
          "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
          " IF NOT (" +
          std::string(condition) + ") THEN RAISE EXCEPTION 'x' USING ERRCODE = '" + state +
          "'; END IF; RETURN NEW; END $$;"
          "CREATE TRIGGER fail BEFORE INSERT ON eta_profiles FOR EACH ROW EXECUTE FUNCTION fail()");
    };
    const int64_t newest = server_->Get("legal").version();
    fail_unless("nextval('tries') > 3");
    EXPECT_EQ(server_->Import(json_).version(), newest + 1) << server_->status.error_message();
    fail_unless("nextval('tries') > 4");
    server_->Import(json_);
    ExpectRefused(StatusCode::ABORTED, "STORE_CONFLICT");
    EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(server_->status).has_value());
    EXPECT_EQ(server_->Import(json_).version(), newest + 2) << server_->status.error_message();
  }
  admin("DROP TRIGGER fail ON eta_profiles");
  const int64_t newest = server_->Get("legal").version();
  {
    // Another connection holds the lock for longer than a writer waits.
    PostgresClient holder(database_->AdminUrl(url_));
    holder("BEGIN; LOCK TABLE eta_store IN ACCESS EXCLUSIVE MODE");
    server_->Import(json_);
    ExpectRefused(StatusCode::UNAVAILABLE, "STORE_BUSY");
    EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(server_->status).has_value());
    EXPECT_EQ(server_->Generate("legal@1").profile_version(), 1);
    holder("ROLLBACK");
  }
  EXPECT_EQ(server_->Import(json_).version(), newest + 1) << server_->status.error_message();
}

// The connection ends around a COMMIT, and the answer is lost.
TEST_F(StoreOutage, ALostAnswerToACommitIsFoundByTheRequestId) {
  ASSERT_NO_FATAL_FAILURE(ServePostgres());
  if (IsSkipped()) return;
  PostgresRelay relay(database_->socket_folder());
  server_ = std::make_unique<Replica>(model_.path(), relay.Through(url_));
  const absl::Cleanup end = [this] { server_.reset(); };  // before the relay ends
  ASSERT_TRUE(server_->up());
  const auto import = [this](const std::string& id) {
    grpc::ClientContext context;
    v1::ImportProfileRequest request;
    request.set_json(json_);
    request.set_request_id(id);
    v1::Profile profile;
    server_->status = server_->profiles->ImportProfile(&context, request, &profile);
    return profile.version();
  };
  int64_t version = 1;
  for (int i = 0; i < Rounds(3, 50); ++i) {
    const std::string id = "request-" + std::to_string(i);
    relay.Arm(PostgresRelay::kCutAfter);
    EXPECT_EQ(import(id), ++version) << server_->status.error_message();
    relay.Arm(PostgresRelay::kCutBefore);
    import(id + "-again");
    ExpectRefused(StatusCode::UNAVAILABLE, "OUTCOME_UNKNOWN");
    EXPECT_EQ(import(id + "-again"), ++version) << server_->status.error_message();
    EXPECT_EQ(import(id + "-again"), version) << "once only";
  }
  EXPECT_EQ(server_->Get("legal").version(), version) << server_->status.error_message();
}

}  // namespace
}  // namespace eta::testing
