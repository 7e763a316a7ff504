// The server's process and its profile store in trouble: failing disks, a database that goes away.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>

#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/process/environment.h"
#include "tests/testing/profiles/postgres_client.h"
#include "tests/testing/profiles/postgres_relay.h"
#include "tests/testing/profiles/postgres_server.h"
#include "tests/testing/profiles/sqlite_client.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr int kExitStoreFailed = 4;

class StoreProcessTest : public ::testing::Test {
 protected:
  // Repeats `done` until it is true, for at most `limit`.
  static bool Within(milliseconds limit, const std::function<bool()>& done) {
    const auto end = steady_clock::now() + limit;
    while (!done()) {
      if (steady_clock::now() > end) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  const TinyModel model_;
  const TempFolder folder_;
  const std::string store_ = folder_.path() + "/profiles.db";
};

// Processes whose store is on failing_disk.cc.
class FailingDiskTest : public StoreProcessTest {
 protected:
  std::unique_ptr<Replica> Start() const {
    const Environment preload("LD_PRELOAD", ETA_FAILING_DISK_LIBRARY);
    const Environment disk("ETA_FAILING_DISK", store_);
    // The sanitizer's runtime would not let a library be loaded before it.
    const Environment asan("ASAN_OPTIONS", "verify_asan_link_order=0");
    return std::make_unique<Replica>(model_.path(), store_);
  }
  void Fail(const char* operation) const { folder_.Write("profiles.db.fails", operation); }
  void Mend() const { std::filesystem::remove(store_ + ".fails"); }
};

// bad input: Store | disk full during Calibrate | RESOURCE_EXHAUSTED, STORE_FULL; nothing
//   acknowledged, writes recover without a restart
TEST_F(FailingDiskTest, AFullOneRefusesAndRecoversWithoutARestart) {
  const auto server = Start();
  ASSERT_TRUE(server->up()) << server->process().AwaitExit().errors;
  ASSERT_TRUE(server->Calibrate(SmallCalibration("legal")).has_value())
      << server->status.error_message();
  Fail("full");
  v1::CalibrateRequest request = SmallCalibration("legal");
  request.set_request_id("once");
  EXPECT_FALSE(server->Calibrate(request).has_value());
  EXPECT_THAT(server->status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "STORE_FULL"));
  EXPECT_EQ(server->Generate("legal").profile_version(), 1) << server->status.error_message();
  Mend();
  const auto profile = server->Calibrate(request);
  ASSERT_TRUE(profile.has_value()) << server->status.error_message();
  EXPECT_EQ(profile->version(), 2);
  server->process().Signal(SIGTERM);
  EXPECT_EQ(server->process().AwaitExit().code, 0);
}

class FailingDisk : public FailingDiskTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Operations, FailingDisk, ::testing::Values("write", "sync"),
                         [](const auto& tested) { return std::string(tested.param); });

// bad input: Store | sync or I/O error at commit | no acknowledgement; NOT_SERVING, exit code 4
TEST_P(FailingDisk, EndsTheProcessWhichLosesNothingAcknowledged) {
  v1::Profile acknowledged;
  std::string json;
  {
    const auto failing = Start();
    Replica& server = *failing;
    ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
    const auto profile = server.Calibrate(SmallCalibration("legal"));
    ASSERT_TRUE(profile.has_value()) << server.status.error_message();
    acknowledged = *profile;
    json = server.Export("legal");

    v1::GenerateRequest request = Ask("Once upon a time");
    request.mutable_stopping()->set_max_tokens(400);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_attention()->set_profile("legal");
    ClientCall running(*server.stub);
    running.Start(request);
    EXPECT_TRUE(running.Read().has_started());

    Fail(GetParam());
    server.Import(json);
    EXPECT_THAT(server.status, FailsWith(StatusCode::INTERNAL, "STORE_IO_ERROR"));
    EXPECT_NE(running.ReadText(), "");
    EXPECT_TRUE(running.Finish().ok()) << "what runs may end";
    const ServerProcess::Exit exit = server.process().AwaitExit();
    EXPECT_EQ(exit.code, kExitStoreFailed) << exit.errors;
    EXPECT_THAT(exit.errors, HasSubstr("profile store"));
  }
  Mend();
  Replica server(model_.path(), store_);
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  EXPECT_EQ(server.Get("legal@1").checksum(), acknowledged.checksum());
  EXPECT_EQ(server.Generate("legal@1").profile_version(), 1) << server.status.error_message();
  const int64_t newest = server.Get("legal").version();
  ASSERT_TRUE(server.status.ok()) << server.status.error_message();
  EXPECT_EQ(server.Import(json).version(), newest + 1) << server.status.error_message();
}

// Another file takes the store's place, without what the server acknowledged.
// bad input: Store | SQLite file taken away | the process ends; no new one is made in its place
TEST_F(StoreProcessTest, AStoreWhoseFileIsTakenAwayEndsTheProcess) {
  Replica server(model_.path(), store_);
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  ASSERT_TRUE(server.Calibrate(SmallCalibration("legal")).has_value())
      << server.status.error_message();
  const std::string json = server.Export("legal");
  std::filesystem::rename(store_, store_ + ".away");
  server.Import(json);
  EXPECT_THAT(server.status, FailsWith(StatusCode::UNAVAILABLE, "STORE_FAILED"));
  const ServerProcess::Exit exit = server.process().AwaitExit();
  EXPECT_EQ(exit.code, kExitStoreFailed) << exit.errors;
}

// The profile is refused to who names it, and no other is served in its place.
TEST_F(StoreProcessTest, ADamagedProfileIsDataLossAndHurtsNoOther) {
  {
    Replica server(model_.path(), store_);
    ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
    for (const char* name : {"legal", "code"}) {
      ASSERT_TRUE(server.Calibrate(SmallCalibration(name)).has_value())
          << server.status.error_message();
    }
    server.process().Signal(SIGTERM);
    EXPECT_EQ(server.process().AwaitExit().code, 0);
  }
  EXPECT_EQ(SqliteClient{store_}(
                "UPDATE eta_profiles SET record = zeroblob(length(record)) WHERE name = 'legal';"
                "SELECT changes()"),
            "1");

  Replica server(model_.path(), store_, {"--default_profile", "legal"});
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  server.Generate("legal");
  EXPECT_THAT(server.status, FailsWith(StatusCode::DATA_LOSS, "PROFILE_CORRUPT"));
  const v1::AttentionUsed without = server.Generate("");
  EXPECT_TRUE(server.status.ok()) << server.status.error_message();
  EXPECT_EQ(without.mode(), v1::ATTENTION_MODE_DYNAMIC) << "no other profile is taken";
  EXPECT_EQ(without.default_profile_miss(), v1::DEFAULT_PROFILE_MISS_UNAVAILABLE);
  EXPECT_EQ(server.Generate("code").profile(), "code") << server.status.error_message();
  ASSERT_TRUE(server.Calibrate(SmallCalibration("legal")).has_value())
      << server.status.error_message();
  EXPECT_EQ(server.Generate("").profile_version(), 2) << server.status.error_message();
}

TEST_F(StoreProcessTest, ADatabaseThatFallsSilentDoesNotKeepTheProcess) {
  PostgresServer* const database = PostgresServer::Get();
  if (database == nullptr) GTEST_SKIP() << PostgresServer::MissingReason();
  PostgresRelay relay(database->socket_folder());
  const std::string url = database->NewDatabase();
  Replica server(model_.path(), relay.Through(url));
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  PostgresClient own(url);
  EXPECT_TRUE(Within(seconds(60), [&] {
    return own("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database()"
               " AND application_name = 'eta-server' AND query <> ''") == "2";
  })) << "it looks for changes on a connection of its own";
  relay.Silence();
  EXPECT_TRUE(Within(seconds(60), [&] { return relay.dropped() > 0; }));
  server.process().Signal(SIGTERM);
  const ServerProcess::Exit exit = server.process().AwaitExit();
  EXPECT_EQ(exit.code, 0) << exit.errors;
}

TEST_F(StoreProcessTest, ServersShareProfilesByPostgresAndGoOnWithoutIt) {
  PostgresServer* const database = PostgresServer::Get();
  if (database == nullptr) GTEST_SKIP() << PostgresServer::MissingReason();
  const std::string url = database->NewDatabase();
  Replica one(model_.path(), url);
  Replica two(model_.path(), url);
  ASSERT_TRUE(one.up()) << one.process().AwaitExit().errors;
  ASSERT_TRUE(two.up()) << two.process().AwaitExit().errors;
  two.Generate("legal");
  EXPECT_EQ(ReasonOf(two.status), "PROFILE_NOT_FOUND");

  const auto uses = [](Replica& server, int64_t version) {
    return server.Generate("legal").profile_version() == version && server.status.ok();
  };
  v1::CalibrateRequest request = SmallCalibration("legal");
  request.set_request_id("once");
  const auto profile = one.Calibrate(request);
  ASSERT_TRUE(profile.has_value()) << one.status.error_message();
  EXPECT_TRUE(Within(seconds(1), [&] { return uses(two, 1); })) << two.status.error_message();
  EXPECT_EQ(two.Get("legal").checksum(), profile->checksum());
  const std::string json = one.Export("legal");

  database->Kill();
  for (Replica* server : {&one, &two}) {
    EXPECT_TRUE(uses(*server, 1)) << server->status.error_message();
    EXPECT_FALSE(server->Calibrate(SmallCalibration("code")).has_value());
    EXPECT_THAT(server->status, FailsWith(StatusCode::UNAVAILABLE, "STORE_UNAVAILABLE"));
    EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(server->status).has_value());
    EXPECT_EQ(server->progress, 0) << "told before any work";
    server->Generate("never-loaded");
    EXPECT_EQ(server->status.error_code(), StatusCode::UNAVAILABLE);
    EXPECT_TRUE(uses(*server, 1)) << server->status.error_message();
  }

  database->Start();
  EXPECT_TRUE(Within(seconds(2), [&] {
    one.Import(json);
    return one.status.ok();
  })) << one.status.error_message();
  EXPECT_TRUE(uses(one, 2)) << one.status.error_message();
  // The server's listener looks for the database again about once a second.
  EXPECT_TRUE(Within(seconds(20), [&] { return uses(two, 2); })) << two.status.error_message();
  const auto again = two.Calibrate(request);
  ASSERT_TRUE(again.has_value()) << two.status.error_message();
  EXPECT_EQ(again->checksum(), profile->checksum());
  EXPECT_EQ(two.progress, 0) << "the request id is known to both";
}

}  // namespace
}  // namespace eta::testing
