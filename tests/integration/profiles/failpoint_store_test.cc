// Profiles while the store fails, or while the process dies in the middle of writing one: whole or
// absent, and never lost once acknowledged.
#include <atomic>
#include <csignal>
#include <string>

#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/process/failpoint_server.h"
#include "tests/testing/profiles/postgres_server.h"
#include "tests/testing/profiles/profile_case.h"
#include "tests/testing/profiles/store_case.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FailpointStore : public ::testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    if (GetParam() == StoreKind::kSqlite) {
      url_ = folder_.path() + "/profiles.db";
    } else if (PostgresServer* const database = PostgresServer::Get()) {
      url_ = database->NewDatabase();
    } else {
      GTEST_SKIP() << PostgresServer::MissingReason();
    }
    Start();
    const auto made = server()->Calibrate(SmallCalibration("legal"));
    ASSERT_TRUE(made.has_value()) << server()->status.error_message();
    json_ = server()->Export("legal");
  }

  FailpointServer& server() { return *server_; }
  void Start(const std::string& rules = "") {
    server_.reset();
    server_ =
        std::make_unique<FailpointServer>(model_.path(), url_, std::vector<std::string>{}, rules);
    ASSERT_TRUE(server()->up()) << server()->process().AwaitExit().errors;
  }
  void Import(const std::string& request_id = "") {
    grpc::ClientContext context;
    v1::ImportProfileRequest request;
    request.set_json(json_);
    request.set_request_id(request_id);
    imported_.Clear();
    server()->status = server()->profiles->ImportProfile(&context, request, &imported_);
  }
  void Name(const std::string& alias, int64_t version) {
    grpc::ClientContext context;
    v1::SetProfileAliasRequest request;
    request.set_name("legal");
    request.set_alias(alias);
    request.set_version(version);
    v1::SetProfileAliasResponse response;
    server()->status = server()->profiles->SetProfileAlias(&context, request, &response);
  }
  void ExpectDied() { EXPECT_EQ(server()->process().AwaitExit().code, -1) << "by a signal"; }
  void ExpectStatus(StatusCode code, const std::string& reason) {
    EXPECT_EQ(server()->status.error_code(), code) << server()->status.error_message();
    EXPECT_EQ(ReasonOf(server()->status), reason);
  }

  const TinyModel model_;
  const TempFolder folder_;
  std::string url_;
  std::unique_ptr<FailpointServer> server_;
  std::string json_;
  v1::Profile imported_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, FailpointStore,
                         ::testing::Values(StoreKind::kSqlite, StoreKind::kPostgres),
                         StoreKindName);

TEST_P(FailpointStore, AWriteThatFindsNoRoomChangesNothing) {
  Name("live", 1);
  ASSERT_TRUE(server()->status.ok()) << server()->status.error_message();
  server().Arm("store.put=fail*1 store.alias=fail*1 store.delete=fail*1");
  Import();
  ExpectStatus(StatusCode::RESOURCE_EXHAUSTED, "STORE_FULL");
  server()->Delete("legal");
  ExpectStatus(StatusCode::RESOURCE_EXHAUSTED, "STORE_FULL");
  EXPECT_THAT(server()->Versions("legal"), ElementsAre(1));
  EXPECT_EQ(server()->Generate("legal@live").profile_version(), 1)
      << server()->status.error_message();
  Import();
  EXPECT_EQ(imported_.version(), 2) << server()->status.error_message();
  Name("live", 2);
  ExpectStatus(StatusCode::RESOURCE_EXHAUSTED, "STORE_FULL");
  EXPECT_EQ(server()->Get("legal@live").version(), 1) << "points to what it did";
  Name("live", 2);
  EXPECT_EQ(server()->Get("legal@live").version(), 2) << server()->status.error_message();
}

TEST_P(FailpointStore, AKillBeforeTheCommitLeavesWhatWasThere) {
  for (const char* point : {"store.put", "store.before_commit"}) {
    SCOPED_TRACE(point);
    server().Arm(std::string(point) + "=kill");
    Import("once");
    EXPECT_EQ(server()->status.error_code(), StatusCode::UNAVAILABLE);
    ExpectDied();
    Start();
    EXPECT_THAT(server()->Versions("legal"), ElementsAre(1));
  }
  Import("once");
  EXPECT_EQ(imported_.version(), 2) << server()->status.error_message();
}

// The client does not know the outcome, asks again, and the work was done once.
TEST_P(FailpointStore, AKillAfterTheCommitKeepsIt) {
  server().Arm("store.after_commit=kill");
  Import("once");
  EXPECT_EQ(server()->status.error_code(), StatusCode::UNAVAILABLE);
  ExpectDied();
  Start();
  EXPECT_THAT(server()->Versions("legal"), ElementsAre(2, 1));
  Import("once");
  EXPECT_EQ(imported_.version(), 2) << server()->status.error_message();
  EXPECT_THAT(server()->Versions("legal"), ElementsAre(2, 1));
}

TEST_P(FailpointStore, ALostAnswerToTheCommitIsReadBack) {
  server().Arm("store.after_commit=fail*1");
  Import("once");
  EXPECT_EQ(imported_.version(), 2) << server()->status.error_message();
  server().Arm("store.after_commit=fail*1");
  Import();  // without a request id
  ExpectStatus(StatusCode::UNAVAILABLE, "OUTCOME_UNKNOWN");
  EXPECT_THAT(server()->Versions("legal"), ElementsAre(3, 2, 1));
}

TEST_P(FailpointStore, AnAliasThatIsBeingMovedNamesTheOldOrTheNew) {
  Import();
  Name("live", 1);
  ASSERT_TRUE(server()->status.ok()) << server()->status.error_message();
  int64_t named = 1;
  for (const char* point : {"store.alias", "store.after_commit"}) {
    SCOPED_TRACE(point);
    server().Arm(std::string(point) + "=kill");
    Name("live", 2);
    ExpectDied();
    Start();
    EXPECT_EQ(server()->Get("legal@live").version(), named) << server()->status.error_message();
    named = 2;
  }
}

TEST_P(FailpointStore, AKilledDeleteDeletesAllOrNothing) {
  Import();
  Name("live", 2);
  server().Arm("store.delete=kill");
  server()->Delete("legal");
  ExpectDied();
  Start();
  EXPECT_THAT(server()->Versions("legal"), ElementsAre(2, 1));
  EXPECT_EQ(server()->Get("legal@live").version(), 2) << server()->status.error_message();
  server().Arm("store.after_commit=kill");
  server()->Delete("legal");
  ExpectDied();
  Start();
  EXPECT_THAT(server()->Versions("legal"), IsEmpty());
}

TEST_P(FailpointStore, AReadThatCannotBeDoneNowCanBeSoon) {
  // The cache's own reads may use up the failpoint, so this is repeated.
  do {
    server().Arm("store.read=fail*1");
    server()->Get("legal");
  } while (server()->status.ok());
  ExpectStatus(StatusCode::UNAVAILABLE, "STORE_BUSY");
  EXPECT_EQ(server()->Get("legal").version(), 1) << server()->status.error_message();
}

// Another server's changes are seen late, but they are seen.
TEST_P(FailpointStore, AnotherServersChangesAreSeenOnceItCanBeAsked) {
  EXPECT_EQ(server()->Generate("legal").profile_version(), 1);
  server().Arm("store.poll=fail");
  Replica other(model_.path(), url_);
  ASSERT_TRUE(other.up());
  ASSERT_EQ(other.Import(json_).version(), 2) << other.status.error_message();
  EXPECT_TRUE(Eventually([&] { return server().Struck("store.poll"); }));
  EXPECT_EQ(server()->Generate("legal").profile_version(), 1);
  server().Disarm();
  EXPECT_TRUE(Eventually([&] { return server()->Generate("legal").profile_version() == 2; }));
}

TEST_P(FailpointStore, AProcessKilledWhileItMakesTheTablesLeavesAPlaceForThem) {
  // Statements for the first version, and on the way from it to the second.
  const bool sqlite = GetParam() == StoreKind::kSqlite;
  for (const int statement : {sqlite ? 3 : 0, sqlite ? 10 : 1}) {
    url_ = sqlite ? folder_.path() + "/at" + std::to_string(statement) + ".db"
                  : PostgresServer::Get()->NewDatabase();
    {
      const FailpointServer dies(model_.path(), url_, {},
                                 "store.migrate=kill@" + std::to_string(statement));
      EXPECT_FALSE(dies->up());
    }
    Start();
    Import();
    EXPECT_EQ(imported_.version(), 1) << server()->status.error_message();
  }
}

// Only PostgreSQL notifies other servers. A write whose notification fails is not done.
TEST_P(FailpointStore, AWriteThatCannotBeToldIsNotDone) {
  if (GetParam() != StoreKind::kPostgres) return;
  server().Arm("store.notify=fail*1");
  Import();
  ExpectStatus(StatusCode::UNAVAILABLE, "STORE_UNAVAILABLE");
  EXPECT_THAT(server()->Versions("legal"), ElementsAre(1));
  Import();
  EXPECT_EQ(imported_.version(), 2) << server()->status.error_message();
}

}  // namespace
}  // namespace eta::testing
