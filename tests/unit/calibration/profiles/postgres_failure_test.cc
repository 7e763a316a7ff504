// PostgreSQL servers that go away, commits whose answer is lost, and errors that it tells.
#include <atomic>
#include <random>

#include "absl/strings/str_cat.h"
#include "calibration/profiles/store/open_profile_store.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/profiles/postgres_client.h"
#include "tests/testing/profiles/postgres_relay.h"
#include "tests/testing/profiles/postgres_store_fixture.h"

namespace eta {
namespace {

using absl::StatusCode;

PutProfile WithRequest(PutProfile put, const std::string& id) {
  put.request_id = id;
  put.payload_digest = std::string(64, '1');
  return put;
}

using PostgresFailure = PostgresStoreFixture;

TEST_F(PostgresFailure, AKilledServerIsUnavailableAndComesBack) {
  const auto store = Open();
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  server_->Kill();
  const absl::Status down = store->Get(kAcme, "legal", Newest()).status();
  EXPECT_THAT(down, FailsFor(StatusCode::kUnavailable, "STORE_UNAVAILABLE"));
  EXPECT_TRUE(GetErrorDetail(down).retry_after.has_value());
  EXPECT_EQ(store->Put(kAcme, MakePut("legal", 2)).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store->Health().code(), StatusCode::kUnavailable);
  const auto late = Open();  // a replica may start while the server is away
  EXPECT_EQ(late->List(kAcme, {}).status().code(), StatusCode::kUnavailable);
  server_->Start();
  EXPECT_TRUE(Eventually([&] { return store->Put(kAcme, MakePut("legal", 2)).ok(); }));
  EXPECT_TRUE(Eventually([&] { return late->Get(kAcme, "legal", int64_t{2}).ok(); }));
  EXPECT_TRUE(store->Health().ok());
  // The thread that looks for changes is back too.
  std::atomic<bool> told = false;
  const auto watch = store->Watch([&](const ProfileChange& change) {
    if (!change.tenant || change.tenant == kOther) told = true;
  });
  EXPECT_TRUE(late->Put(kOther, MakePut("x", 1)).ok());
  EXPECT_TRUE(Eventually([&] { return told.load(); }));
}

// A trigger fails as serialization does; a sequence counts the tries across the rollbacks.
// bad input: Store | PostgreSQL serialization failure or deadlock | tried again up to 3 times, then
//   ABORTED, STORE_CONFLICT with RetryInfo |
//   StoreOutage.ConflictsOfPostgresAreTriedAgainAndThenTold
TEST_F(PostgresFailure, SerializationFailuresAreRetriedThreeTimes) {
  const auto store = Open();
  PostgresClient admin(server_->AdminUrl(url_));
  admin(
      "CREATE SEQUENCE tries; GRANT ALL ON tries TO eta;"
      "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
      " IF nextval('tries') % 4 <> 0 OR NEW.name = 'never' THEN"
      "  RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$;"
      "CREATE TRIGGER fail BEFORE INSERT ON eta_profiles FOR EACH ROW EXECUTE FUNCTION fail()");
  EXPECT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  EXPECT_EQ(admin("SELECT last_value FROM tries"), "4");
  const absl::Status status = store->Put(kAcme, MakePut("never", 1)).status();
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_EQ(admin("SELECT last_value FROM tries"), "8");
}

// What the server says, in the statement and only at COMMIT, as the store says it.
TEST_F(PostgresFailure, ItsErrorsHaveTheirReasons) {
  const auto store = Open();
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  PostgresClient admin(server_->AdminUrl(url_));
  struct Case {
    const char* state;
    StatusCode code;
    const char* reason;
    bool again;  // tells when to try again
  };
  for (const Case& expected : {
           Case{"40P01", StatusCode::kAborted, "STORE_CONFLICT", true},
           Case{"53100", StatusCode::kResourceExhausted, "STORE_FULL", false},
           Case{"53200", StatusCode::kUnavailable, "STORE_UNAVAILABLE", true},
           Case{"55P03", StatusCode::kUnavailable, "STORE_BUSY", true},
           Case{"57014", StatusCode::kUnavailable, "STORE_BUSY", true},
           Case{"25006", StatusCode::kUnavailable, "STORE_UNAVAILABLE", true},
           Case{"58030", StatusCode::kInternal, "STORE_IO_ERROR", false},
           Case{"XX001", StatusCode::kDataLoss, "STORE_CORRUPT", false},
           Case{"42501", StatusCode::kFailedPrecondition, "STORE_PERMISSIONS", false},
       }) {
    for (const char* when : {"BEFORE INSERT ON eta_profiles",
                             "AFTER INSERT ON eta_profiles DEFERRABLE INITIALLY DEFERRED"}) {
      SCOPED_TRACE(absl::StrCat(expected.state, " ", when));
      const bool deferred = when[0] == 'A';
      admin(
          absl::StrCat("CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
                       " $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '",
                       expected.state, "'; END $$; CREATE ", deferred ? "CONSTRAINT " : "",
                       "TRIGGER fail ", when, " FOR EACH ROW EXECUTE FUNCTION fail()"));
      const absl::Status status = store->Put(kAcme, MakePut("legal", 2)).status();
      admin("DROP TRIGGER fail ON eta_profiles");
      EXPECT_EQ(status.code(), expected.code) << status;
      EXPECT_EQ(Reason(status), expected.reason);
      EXPECT_EQ(GetErrorDetail(status).retry_after.has_value(), expected.again);
      EXPECT_EQ((*store->Get(kAcme, "legal", Newest()))->version, 1);
    }
  }
  EXPECT_EQ((*store->Put(kAcme, MakePut("legal", 2)))->version, 2);
}

// bad input: Store | connection lost after COMMIT was sent | read back by request id; unresolved
//   UNAVAILABLE, OUTCOME_UNKNOWN | StoreOutage.ALostAnswerToACommitIsFoundByTheRequestId
TEST_F(PostgresFailure, ALostAnswerToCommitIsResolvedByTheRequestId) {
  PostgresRelay relay(server_->socket_folder());
  const auto store = OpenProfileStore(relay.Through(url_), StorePlace::FastOptions()).value();

  relay.Arm(PostgresRelay::kCutAfter);
  EXPECT_EQ(store->Put(kAcme, WithRequest(MakePut("legal", 1, 0), "r1")).value()->version, 1);

  relay.Arm(PostgresRelay::kCutBefore);
  EXPECT_THAT(store->Put(kAcme, WithRequest(MakePut("legal", 2, 1), "r2")).status(),
              FailsFor(StatusCode::kUnavailable, "OUTCOME_UNKNOWN"));
  EXPECT_EQ((*store->Put(kAcme, WithRequest(MakePut("legal", 2, 1), "r2")))->version, 2);

  relay.Arm(PostgresRelay::kCutAfter);
  EXPECT_EQ(Reason(store->Put(kAcme, MakePut("legal", 3, 2)).status()), "OUTCOME_UNKNOWN");
  EXPECT_EQ((*store->Get(kAcme, "legal", Newest()))->version, 3);
}

// Many times: whichever way a commit is cut, repeating the request makes one version.
TEST_F(PostgresFailure, RequestsCutAtCommitAreDoneOnce) {
  PostgresRelay relay(server_->socket_folder());
  const auto store = OpenProfileStore(relay.Through(url_), StorePlace::FastOptions()).value();
  std::mt19937 random(1);
  const int requests = Rounds(40, 500);
  for (int request = 1; request <= requests; ++request) {
    absl::StatusOr<ProfilePtr> stored = absl::UnavailableError("not tried yet");
    for (int attempt = 0; absl::IsUnavailable(stored.status()); ++attempt) {
      relay.Arm(attempt > 3         ? PostgresRelay::kForward
                : random() % 2 == 0 ? PostgresRelay::kCutBefore
                                    : PostgresRelay::kCutAfter);
      stored = store->Put(kAcme, WithRequest(MakePut("legal", 1), absl::StrCat("r", request)));
    }
    ASSERT_TRUE(stored.ok()) << stored.status();
    ASSERT_EQ((*stored)->version, request);
  }
  relay.Arm(PostgresRelay::kForward);
  const auto list = store->ListVersions(kAcme, "legal", {.size = 1000, .token = ""});
  EXPECT_EQ(list->profiles.size(), static_cast<size_t>(requests));

  // Without a request id it is for the caller to look.
  relay.Arm(PostgresRelay::kCutAfter);
  EXPECT_EQ(Reason(store->SetAlias(kAcme, {"legal", "stable", 2, 0})), "OUTCOME_UNKNOWN");
  EXPECT_EQ((*store->Get(kAcme, "legal", std::string("stable")))->version, 2);
  relay.Arm(PostgresRelay::kCutAfter);
  EXPECT_EQ(Reason(store->Delete(kAcme, "legal", {})), "OUTCOME_UNKNOWN");
  EXPECT_TRUE(absl::IsNotFound(store->Get(kAcme, "legal", Newest()).status()));
}

}  // namespace
}  // namespace eta
