// A profile store's SQLite file: what it is, what others put in its place, and disks that fail.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <thread>

#include "calibration/profiles/store/open_profile_store.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/profiles/sqlite_client.h"
#include "tests/testing/profiles/store_case.h"

namespace eta {
namespace {

using absl::StatusCode;

// Makes tables of today those of schema version 2.
constexpr char kBackToVersion2[] =
    "DROP INDEX eta_profiles_by_model;"
    " ALTER TABLE eta_profiles DROP COLUMN model_fingerprint;"
    " ALTER TABLE eta_profiles DROP COLUMN staged;"
    " ALTER TABLE eta_aliases RENAME TO eta_aliases_3;"
    " CREATE TABLE eta_aliases (tenant TEXT NOT NULL, name TEXT NOT NULL, alias TEXT NOT NULL,"
    " version INTEGER NOT NULL, PRIMARY KEY (tenant, name, alias)) STRICT;"
    " INSERT INTO eta_aliases SELECT tenant, name, alias, version FROM eta_aliases_3;"
    " DROP TABLE eta_aliases_3; PRAGMA user_version = 2;";

class SqliteStore : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<ProfileStore>> Open() {
    return OpenProfileStore(path_, StorePlace::FastOptions());
  }

  TempFolder folder_;
  const std::string path_ = folder_.path() + "/profiles.db";
};

mode_t Mode(const std::string& path) {
  struct stat file = {};
  return stat(path.c_str(), &file) == 0 ? file.st_mode & 0777 : 0;
}

TEST_F(SqliteStore, FilesAreTheOwnersAloneWhateverTheUmask) {
  const mode_t before = umask(0);
  {
    const auto store = Open().value();
    ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
    for (const char* suffix : {"", "-wal", "-shm"}) EXPECT_EQ(Mode(path_ + suffix), 0600u);
  }
  chmod(path_.c_str(), 0666);
  EXPECT_TRUE(Open().ok());
  EXPECT_EQ(Mode(path_), 0600u);
  umask(before);
}

TEST_F(SqliteStore, AFolderIsMadeForTheOwnerAloneAndRefusedIfEveryUserMayWriteToIt) {
  const std::string folder = folder_.path() + "/made";
  const auto open = [&folder] {
    return OpenProfileStore(folder + "/profiles.db", StorePlace::FastOptions());
  };
  EXPECT_TRUE(open().ok());
  EXPECT_EQ(Mode(folder), 0700u);
  chmod(folder.c_str(), 01777);
  EXPECT_THAT(open().status(), FailsFor(StatusCode::kFailedPrecondition, "STORE_PERMISSIONS"));
}

// bad input: Store | SQLite file that is not ours | exit code 2; the file is kept |
//   ProfileProcessTest.AStoreThatCannotBeOpenedIsABadStart
TEST_F(SqliteStore, ForeignFilesAreRefusedAndKept) {
  SqliteClient{path_}("CREATE TABLE diary (entry TEXT); INSERT INTO diary VALUES ('x')");
  const std::string foreign = ReadFile(path_);
  EXPECT_THAT(Open().status(), FailsFor(StatusCode::kDataLoss, "STORE_CORRUPT"));
  EXPECT_EQ(ReadFile(path_), foreign);

  for (const std::string& text : {std::string("hello"), std::string(8192, 'x'),
                                  std::string("SQLite format 3\0", 16) + std::string(5000, 'y')}) {
    std::filesystem::remove(path_);
    folder_.Write("profiles.db", text);
    EXPECT_EQ(Open().status().code(), StatusCode::kDataLoss);
    EXPECT_EQ(ReadFile(path_), text);
  }
}

TEST_F(SqliteStore, NewerSchemaAndOtherTablesAreRefused) {
  ASSERT_TRUE(Open().ok());
  SqliteClient{path_}("PRAGMA user_version = 4");
  EXPECT_EQ(Open().status().code(), StatusCode::kFailedPrecondition);
  SqliteClient{path_}("PRAGMA user_version = 2");
  EXPECT_EQ(Reason(Open().status()), "STORE_CORRUPT") << "these are no tables of version 2";
  SqliteClient{path_}("PRAGMA user_version = 3; ANALYZE");
  EXPECT_TRUE(Open().ok());
  SqliteClient{path_}("ALTER TABLE eta_profiles RENAME COLUMN record TO blob");
  EXPECT_EQ(Reason(Open().status()), "STORE_CORRUPT");
}

TEST_F(SqliteStore, AFileOfTheFirstVersionIsMigratedAndItsRowsAreCounted) {
  {
    const auto store = Open().value();
    ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
    ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 2)).ok());
    ASSERT_TRUE(store->Put(kAcme, MakePut("gone", 3)).ok());
    ASSERT_TRUE(store->Delete(kAcme, "gone", std::nullopt).ok());
  }
  SqliteClient{path_}(kBackToVersion2);
  SqliteClient{path_}(
      "DROP TRIGGER eta_uses_added; DROP TRIGGER eta_uses_changed; DROP TABLE eta_uses;"
      " PRAGMA user_version = 1");
  ProfileStoreOptions options = StorePlace::FastOptions();
  options.quota.versions = 3;
  options.quota.versions_ever = 4;
  const auto store = OpenProfileStore(path_, options).value();
  ASSERT_TRUE(Eventually([&] { return store->Use(kAcme).has_value(); }));
  EXPECT_EQ(store->Use(kAcme)->versions, 2);
  EXPECT_EQ(store->Use(kAcme)->versions_ever, 3);
  EXPECT_GT(store->Use(kAcme)->bytes, 0);
  EXPECT_TRUE(store->Get(kAcme, "legal", int64_t{1}).ok());
  EXPECT_TRUE(store->Put(kAcme, MakePut("new", 4)).ok());
  EXPECT_EQ(Reason(store->Put(kAcme, MakePut("more", 5)).status()), "PROFILE_QUOTA");
  EXPECT_TRUE(store->Delete(kAcme, "legal", std::nullopt).ok());
  EXPECT_EQ(Reason(store->Put(kAcme, MakePut("more", 5)).status()), "PROFILE_QUOTA")
      << "four versions ever";
}

TEST_F(SqliteStore, AFileOfTheSecondVersionIsMigratedAndItsRowsCountForEveryModel) {
  const std::string a(64, 'a'), b(64, 'b');
  {
    const auto store = Open().value();
    for (uint32_t i = 1; i <= 4; ++i) {
      PutProfile put = MakePut("legal", i);
      if (i % 2 == 0) put.content.model_fingerprint = b;
      ASSERT_TRUE(store->Put(kAcme, put).ok());
    }
    ASSERT_TRUE(store->Put(TenantOf("other"), MakePut("legal", 1)).ok());
    ASSERT_TRUE(store->Put(kAcme, MakePut("damaged", 1)).ok());
    ASSERT_TRUE(store->Put(kAcme, MakePut("damaged", 2)).ok());
    ASSERT_TRUE(store->SetAlias(kAcme, {"legal", "stable", 4, {}}).ok());
  }
  SqliteClient{path_}(kBackToVersion2);
  SqliteClient{path_}(
      "UPDATE eta_profiles SET record = x'00' WHERE name = 'damaged' AND version = 2");
  const auto serving = [&](const std::string& model) {
    ProfileStoreOptions options = StorePlace::FastOptions();
    options.served_model = [model] { return ServedModel{.fingerprint = model}; };
    return OpenProfileStore(path_, options);
  };
  const auto for_a = serving(a), for_b = serving(b);
  ASSERT_TRUE(for_a.ok()) << for_a.status();
  ASSERT_TRUE(for_b.ok()) << for_b.status();
  EXPECT_EQ((*(*for_a)->Get(kAcme, "legal", Newest()))->version, 4);
  EXPECT_EQ((*(*for_b)->Get(kAcme, "legal", Newest()))->version, 4);
  EXPECT_TRUE((*for_a)->Get(TenantOf("other"), "legal", Newest()).ok());
  const std::string stable = "stable";
  EXPECT_EQ((*(*for_b)->Get(kAcme, "legal", stable))->version, 4);
  EXPECT_EQ((*(*for_a)->Get(kAcme, "legal", stable))->version, 4);
  EXPECT_EQ(Reason((*for_a)->Get(kAcme, "damaged", Newest()).status()), "PROFILE_CORRUPT")
      << "nothing is served in its place";
  EXPECT_TRUE((*for_a)->Get(kAcme, "damaged", int64_t{1}).ok());
  EXPECT_EQ((*(*for_a)->Put(kAcme, MakePut("damaged", 3)))->version, 3);
  EXPECT_TRUE((*for_a)->Get(kAcme, "damaged", Newest()).ok()) << "a new version mends it";
}

TEST_F(SqliteStore, ManyMayMigrateAFileAtOnce) {
  { ASSERT_TRUE(Open().value()->Put(kAcme, MakePut("legal", 1)).ok()); }
  SqliteClient{path_}(kBackToVersion2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      const auto store = Open();
      ASSERT_TRUE(store.ok()) << store.status();
      const auto stored = (*store)->Put(kAcme, MakePut("p" + std::to_string(i), 1));
      EXPECT_TRUE(stored.ok()) << stored.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ((*Open())->List(kAcme, {})->profiles.size(), 7u);
}

TEST_F(SqliteStore, AFileWithoutSchemaYetIsTakenUp) {
  // A process that was killed between making the file and writing to it.
  folder_.Write("profiles.db", "");
  EXPECT_TRUE(Open().value()->Put(kAcme, MakePut("legal", 1)).ok());
}

TEST_F(SqliteStore, ManyMayMakeTheFileAtOnce) {
  for (int round = 0; round < 20; ++round) {
    const std::string path = path_ + std::to_string(round);
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
      threads.emplace_back([&, i] {
        const auto store = OpenProfileStore(path, StorePlace::FastOptions());
        ASSERT_TRUE(store.ok()) << store.status();
        const auto stored = (*store)->Put(kAcme, MakePut("p" + std::to_string(i), 1));
        EXPECT_TRUE(stored.ok()) << stored.status();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// bad input: Store | SQLite file with damaged pages | DATA_LOSS; the file is kept
TEST_F(SqliteStore, DamagedPagesAreDataLossAndTheFileIsKept) {
  {
    const auto store = Open().value();
    for (uint32_t i = 0; i < 50; ++i) ASSERT_TRUE(store->Put(kAcme, MakePut("legal", i)).ok());
  }
  std::string damaged = ReadFile(path_);
  ASSERT_GT(damaged.size(), 3 * 4096u);
  for (size_t i = 4096; i < damaged.size(); ++i) damaged[i] = static_cast<char>(damaged[i] ^ 0x5a);
  folder_.Write("profiles.db", damaged);
  EXPECT_EQ(Open().status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(ReadFile(path_), damaged);
}

// The system's cache has the file; the server has no copy of it for each of its threads.
TEST_F(SqliteStore, OfALargeFileLittleIsHeldInMemory) {
  const auto store = Open().value();
  PutProfile put = MakePut("a", 1);
  put.content = MakeContent(1, 64, 128);
  const int64_t before = sqlite3_memory_used();
  for (; std::filesystem::file_size(path_) < (5u << 20); put.name += "a") {
    for (int version = 0; version < 20; ++version) ASSERT_TRUE(store->Put(kAcme, put).ok());
    ASSERT_TRUE(store->Get(kAcme, put.name, Newest()).ok());
  }
  EXPECT_LT(sqlite3_memory_used() - before, 1 << 20);
}

TEST_F(SqliteStore, ALockedFileIsUnavailableForWritersOnly) {
  ProfileStoreOptions options = StorePlace::FastOptions();
  options.busy_timeout = std::chrono::milliseconds(50);
  const auto store = OpenProfileStore("sqlite:" + path_, options).value();
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  auto other = std::make_unique<SqliteClient>(path_);
  (*other)("BEGIN IMMEDIATE");
  const absl::Status busy = store->Put(kAcme, MakePut("legal", 2)).status();
  EXPECT_THAT(busy, FailsFor(StatusCode::kUnavailable, "STORE_BUSY"));
  EXPECT_TRUE(GetErrorDetail(busy).retry_after.has_value());
  EXPECT_TRUE(store->Get(kAcme, "legal", Newest()).ok());
  other.reset();
  EXPECT_TRUE(store->Put(kAcme, MakePut("legal", 2)).ok());
}

TEST_F(SqliteStore, AFilePutInItsPlaceTakesNoWrites) {
  const auto store = Open().value();
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  std::filesystem::rename(path_, path_ + ".moved");
  EXPECT_EQ(Reason(store->Put(kAcme, MakePut("legal", 2)).status()), "STORE_FAILED");
  EXPECT_EQ(Reason(store->Health()), "STORE_FAILED");
}

TEST_F(SqliteStore, BadUrls) {
  EXPECT_EQ(OpenProfileStore("").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenProfileStore("sqlite:").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenProfileStore("mysql://x").status().code(), StatusCode::kInvalidArgument);
  std::filesystem::create_directory(folder_.path() + "/folder");
  EXPECT_EQ(OpenProfileStore("sqlite:" + folder_.path() + "/folder").status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenProfileStore(folder_.path() + "/no/such/file").status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(OpenProfileStore("dir:" + folder_.path() + "/none").status().code(),
            StatusCode::kNotFound);
}

// Runs `body` in a process of its own, which must say true.
template <typename Body>
void ExpectInChild(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

bool Expect(bool condition, const char* what) {
  if (!condition) fprintf(stderr, "failed: %s\n", what);
  return condition;
}
#define CHILD_EXPECT(condition) \
  if (!Expect(condition, #condition)) return false

// After a failed write nobody knows what the disk holds: no acknowledgement, and no more
// writes.
TEST_F(SqliteStore, AnIoErrorAtCommitClosesTheWriter) {
  ExpectInChild([&] {
    signal(SIGXFSZ, SIG_IGN);
    const auto store = Open();
    CHILD_EXPECT(store.ok());
    CHILD_EXPECT((*store)->Put(kAcme, MakePut("legal", 1)).ok());
    rlimit limit = {};
    getrlimit(RLIMIT_FSIZE, &limit);
    const rlimit small = {std::filesystem::file_size(path_ + "-wal"), limit.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const absl::Status failed = (*store)->Put(kAcme, MakePut("legal", 2)).status();
    setrlimit(RLIMIT_FSIZE, &limit);
    CHILD_EXPECT(failed.code() == StatusCode::kInternal);
    CHILD_EXPECT(Reason(failed) == "STORE_IO_ERROR");
    CHILD_EXPECT(Reason((*store)->Put(kAcme, MakePut("legal", 3)).status()) == "STORE_FAILED");
    CHILD_EXPECT(Reason((*store)->Health()) == "STORE_FAILED");
    CHILD_EXPECT((*(*store)->Get(kAcme, "legal", Newest()))->version == 1);
    return true;
  });
  const auto store = Open().value();
  EXPECT_EQ((*store->Get(kAcme, "legal", Newest()))->content, MakeContent(1));
  EXPECT_TRUE(store->Put(kAcme, MakePut("legal", 4)).ok());
}

// On a real disk; store_disk_test.cc has every operation of a simulated one.
TEST_F(SqliteStore, AFullDiskRefusesAndRecovers) {
  // A small file system of our own, seen by one child process alone.
  const auto mount_small = [&] {
    const int flags = CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER);
    return unshare(flags) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("none", folder_.path().c_str(), "tmpfs", 0, "size=1m,mode=0700") == 0;
  };
  const pid_t pass = fork();
  if (pass == 0) _exit(mount_small() ? 0 : 1);
  int status = 0;
  waitpid(pass, &status, 0);
  if (status != 0) GTEST_SKIP() << "this user may not mount a tmpfs";

  ExpectInChild([&] {
    CHILD_EXPECT(mount_small());
    const auto store = Open();
    CHILD_EXPECT(store.ok());
    CHILD_EXPECT((*store)->Put(kAcme, MakePut("legal", 1)).ok());
    const std::string ballast = folder_.path() + "/ballast";
    FILE* file = fopen(ballast.c_str(), "w");
    const std::string block(4096, 'x');
    while (fwrite(block.data(), 1, block.size(), file) == block.size() && fflush(file) == 0) {
    }
    fclose(file);
    int64_t acknowledged = 1;
    absl::Status full;
    for (int i = 0; i < 1000 && full.ok(); ++i) {
      const auto stored = (*store)->Put(kAcme, MakePut("legal", 1));
      full = stored.status();
      if (stored.ok()) acknowledged = (*stored)->version;
    }
    CHILD_EXPECT(full.code() == StatusCode::kResourceExhausted);
    CHILD_EXPECT(Reason(full) == "STORE_FULL");
    CHILD_EXPECT((*(*store)->Get(kAcme, "legal", Newest()))->version == acknowledged);
    CHILD_EXPECT((*store)->Health().ok());
    std::filesystem::remove(ballast);
    const auto stored = (*store)->Put(kAcme, MakePut("legal", 1));
    CHILD_EXPECT(stored.ok() && (*stored)->version == acknowledged + 1);
    const auto reopened = Open();
    CHILD_EXPECT(reopened.ok());
    CHILD_EXPECT(
        (*reopened)->ListVersions(kAcme, "legal", {.size = 1000, .token = ""})->profiles.size() ==
        static_cast<size_t>(acknowledged + 1));
    return true;
  });
}

}  // namespace
}  // namespace eta
