// What is PostgreSQL's own: row-level security, servers that go away, commits whose answer is lost.
#include <libpq-fe.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "engine/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/postgres_server.h"
#include "tests/testing/store_case.h"

namespace eta {
namespace {

using absl::StatusCode;

const Tenant kAcme = TenantOf("acme");
const Tenant kOther = TenantOf("other");

std::string Reason(const absl::Status& status) {
  return GetErrorDetail(status).reason;
}

PutProfile WithRequest(PutProfile put, const std::string& id) {
  put.request_id = id;
  put.payload_digest = std::string(64, '1');
  return put;
}

// A connection past the store: the first value of the last statement, or the SQLSTATE of an error.
class Client {
 public:
  explicit Client(const std::string& url) : handle_(PQconnectdb(url.c_str())) {}
  ~Client() { PQfinish(handle_); }
  std::string operator()(const std::string& sql) {
    PGresult* result = PQexec(handle_, sql.c_str());
    const char* state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    std::string answer = state != nullptr        ? state
                         : PQntuples(result) > 0 ? PQgetvalue(result, 0, 0)
                                                 : "";
    PQclear(result);
    return answer;
  }

 private:
  PGconn* handle_;
};

class PostgresStore : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = PostgresServer::Get();
    if (server_ == nullptr) GTEST_SKIP() << PostgresServer::MissingReason();
    url_ = server_->NewDatabase();
  }
  std::unique_ptr<ProfileStore> Open(ProfileStoreOptions options = StorePlace::FastOptions()) {
    auto store = OpenProfileStore(url_, options);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  PostgresServer* server_ = nullptr;
  std::string url_;
};

TEST_F(PostgresStore, RowLevelSecurityHidesOtherTenants) {
  const auto store = Open();
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  ASSERT_TRUE(store->Put(kOther, MakePut("legal", 2)).ok());
  ASSERT_TRUE(store->SetAlias(kAcme, {"legal", "stable", 1, {}}).ok());
  EXPECT_EQ(Client(server_->AdminUrl(url_))("SELECT COUNT(*) FROM eta_profiles"), "2");
  // The server's own role without a WHERE.
  Client client(url_);
  EXPECT_EQ(client("SELECT COUNT(*) FROM eta_profiles"), "0");
  EXPECT_EQ(client("SELECT COUNT(*) FROM eta_aliases"), "0");
  client("SET app.tenant = 'other'");
  EXPECT_EQ(client("SELECT string_agg(tenant, ',') FROM eta_profiles"), "other");
  EXPECT_EQ(client("SELECT COUNT(*) FROM eta_aliases"), "0");
  EXPECT_EQ(client("UPDATE eta_profiles SET tenant = 'acme'"), "42501");
  EXPECT_EQ(client("DELETE FROM eta_profiles WHERE tenant = 'acme' RETURNING 1"), "");
  EXPECT_EQ(Client(server_->AdminUrl(url_))("SELECT COUNT(*) FROM eta_profiles"), "2");
}

TEST_F(PostgresStore, ReplicasMigrateAtOnceAndSeeEachOther) {
  std::vector<std::thread> threads;
  std::atomic<int> stored = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto store = OpenProfileStore(url_, StorePlace::FastOptions());
      ASSERT_TRUE(store.ok()) << store.status();
      if ((*store)->Put(kAcme, MakePut("p" + std::to_string(i), 1)).ok()) ++stored;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stored, 4);
  EXPECT_EQ(Open()->List(kAcme, {})->profiles.size(), 4u);
}

TEST_F(PostgresStore, NewerSchemaAndMissingRightsAreRefused) {
  ASSERT_NE(Open(), nullptr);
  Client admin(server_->AdminUrl(url_));
  admin("UPDATE eta_store SET schema_version = 2");
  EXPECT_EQ(Reason(OpenProfileStore(url_).status()), "STORE_SCHEMA_TOO_NEW");
  admin("UPDATE eta_store SET schema_version = 1");
  admin("REVOKE ALL ON eta_store FROM eta");
  EXPECT_EQ(Reason(OpenProfileStore(url_).status()), "STORE_PERMISSIONS");
  EXPECT_EQ(OpenProfileStore("postgresql://host:port/x?nonsense=1").status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(PostgresStore, AKilledServerIsUnavailableAndComesBack) {
  const auto store = Open();
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  server_->Kill();
  const absl::Status down = store->Get(kAcme, "legal", Newest()).status();
  EXPECT_EQ(down.code(), StatusCode::kUnavailable);
  EXPECT_EQ(Reason(down), "STORE_UNAVAILABLE");
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

TEST_F(PostgresStore, NotificationsNeedNoPoll) {
  ProfileStoreOptions options = StorePlace::FastOptions();
  options.poll_interval = std::chrono::milliseconds(1500);
  const auto writer = Open();
  ASSERT_TRUE(writer->Put(kAcme, MakePut("legal", 1)).ok());
  const auto store = OpenProfileStore(url_, options);
  ASSERT_TRUE(store.ok());
  std::atomic<int> told = 0;
  const auto watch = (*store)->Watch([&](const ProfileChange&) { ++told; });
  // The first look listens from here on.
  ASSERT_TRUE(Eventually([&] { return told > 0; }));
  told = 0;
  ASSERT_TRUE(writer->Put(kAcme, MakePut("legal", 2)).ok());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(Eventually([&] { return told > 0; }));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST_F(PostgresStore, ALockedStoreIsBusyForWritersOnly) {
  ProfileStoreOptions options = StorePlace::FastOptions();
  options.busy_timeout = std::chrono::milliseconds(50);
  const auto store = Open(options);
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  Client other(url_);
  other("BEGIN; SELECT * FROM eta_store FOR UPDATE");
  EXPECT_EQ(Reason(store->Put(kAcme, MakePut("legal", 2)).status()), "STORE_BUSY");
  EXPECT_TRUE(store->Get(kAcme, "legal", Newest()).ok());
  other("ROLLBACK");
  EXPECT_TRUE(store->Put(kAcme, MakePut("legal", 2)).ok());
}

// A trigger fails as serialization does; a sequence counts the tries across the rollbacks.
TEST_F(PostgresStore, SerializationFailuresAreRetriedThreeTimes) {
  const auto store = Open();
  Client admin(server_->AdminUrl(url_));
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

TEST_F(PostgresStore, ADamagedRowIsDataLoss) {
  const auto store = Open();
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  Client(server_->AdminUrl(url_))(
      "UPDATE eta_profiles SET record = set_byte(record, 100, 255 - get_byte(record, 100))");
  EXPECT_EQ(Reason(store->Get(kAcme, "legal", Newest()).status()), "PROFILE_CORRUPT");
}

// Stands between the store and the server, and cuts the connection at the next COMMIT once armed:
// before the server has it, or after the server has answered.
class CommitCutter {
 public:
  enum Cut { kNot, kBefore, kAfter };

  explicit CommitCutter(const std::string& server_folder)
      : server_(server_folder + "/.s.PGSQL.5432") {
    listener_ = socket(AF_UNIX, SOCK_STREAM, 0);
    const sockaddr_un address = Address(folder_.path() + "/.s.PGSQL.5432");
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    thread_ = std::thread([this] { Accept(); });
  }
  ~CommitCutter() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  const std::string& folder() const { return folder_.path(); }
  void Arm(Cut cut) { cut_ = cut; }

 private:
  static sockaddr_un Address(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
  }
  void Accept() {
    std::vector<std::thread> pumps;
    for (int client; (client = accept(listener_, nullptr, nullptr)) >= 0;) {
      pumps.emplace_back([this, client] { Pump(client); });
    }
    for (std::thread& pump : pumps) pump.join();
  }
  void Pump(int client) {
    const int server = socket(AF_UNIX, SOCK_STREAM, 0);
    const sockaddr_un address = Address(server_);
    if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      while (Forward(client, server)) {
      }
    }
    close(server);
    close(client);
  }
  bool Forward(int client, int server) {
    std::array<pollfd, 2> ends = {pollfd{client, POLLIN, 0}, pollfd{server, POLLIN, 0}};
    if (poll(ends.data(), ends.size(), -1) < 0) return false;
    const bool from_client = ends[0].revents != 0;
    std::array<char, 65536> bytes;
    const ssize_t size = read(from_client ? client : server, bytes.data(), bytes.size());
    if (size <= 0) return false;
    const std::string_view text(bytes.data(), static_cast<size_t>(size));
    const bool commit = from_client && text.find(std::string_view("COMMIT\0", 7)) != text.npos;
    const Cut cut = commit ? cut_.exchange(kNot) : kNot;
    if (cut == kBefore) return false;
    if (write(from_client ? server : client, bytes.data(), size_t(size)) != size) return false;
    if (cut == kAfter) {
      (void)!read(server, bytes.data(), bytes.size());
      return false;
    }
    return true;
  }

  TempFolder folder_;
  const std::string server_;
  std::atomic<Cut> cut_ = kNot;
  int listener_ = -1;
  std::thread thread_;
};

TEST_F(PostgresStore, ALostAnswerToCommitIsResolvedByTheRequestId) {
  CommitCutter cutter(server_->socket_folder());
  std::string through = url_;
  through.replace(through.find("host=") + 5, std::string::npos, cutter.folder());
  const auto opened = OpenProfileStore(through, StorePlace::FastOptions());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto& store = *opened;

  cutter.Arm(CommitCutter::kAfter);
  const auto found = store->Put(kAcme, WithRequest(MakePut("legal", 1, 0), "r1"));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->version, 1);

  cutter.Arm(CommitCutter::kBefore);
  const absl::Status unknown =
      store->Put(kAcme, WithRequest(MakePut("legal", 2, 1), "r2")).status();
  EXPECT_EQ(unknown.code(), StatusCode::kUnavailable);
  EXPECT_EQ(Reason(unknown), "OUTCOME_UNKNOWN");
  EXPECT_EQ((*store->Put(kAcme, WithRequest(MakePut("legal", 2, 1), "r2")))->version, 2);

  cutter.Arm(CommitCutter::kAfter);
  EXPECT_EQ(Reason(store->Put(kAcme, MakePut("legal", 3, 2)).status()), "OUTCOME_UNKNOWN");
  EXPECT_EQ((*store->Get(kAcme, "legal", Newest()))->version, 3);
}

}  // namespace
}  // namespace eta
