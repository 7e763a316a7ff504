// Damaged rows: whoever asks for one is told, everything else
// goes on, and no damage anywhere in the file makes a wrong profile.
#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "calibration/profiles/profile_record.h"
#include "calibration/profiles/store/open_profile_store.h"
#include "engine/base/error.h"
#include "engine/base/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/profiles/postgres_client.h"
#include "tests/testing/profiles/postgres_server.h"
#include "tests/testing/profiles/sqlite_client.h"
#include "tests/testing/profiles/store_case.h"
#include "tests/testing/profiles/store_model.h"

namespace eta {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;
using ::testing::Not;

class QuarantineTest : public ::testing::TestWithParam<StoreKind> {
 protected:
  QuarantineTest() : place_(GetParam()) {}
  void SetUp() override {
    if (!place_.missing().empty()) GTEST_SKIP() << place_.missing();
  }
  // One of the two dialects, past the store.
  void Execute(const std::string& sqlite, const std::string& postgres) {
    if (GetParam() == StoreKind::kPostgres) {
      PostgresClient admin(PostgresServer::Get()->AdminUrl(place_.url()));
      EXPECT_EQ(admin(postgres), "");
      return;
    }
    SqliteClient(place_.path() + "/profiles.db")(sqlite);
  }
  void Execute(const std::string& both) { Execute(both, both); }
  void FlipByte(const std::string& where, int at) {
    const std::string from = absl::StrCat("substr(record, 1, ", at, ")");
    const std::string rest = absl::StrCat("substr(record, ", at + 2, ")");
    Execute(absl::StrCat("UPDATE eta_profiles SET record = CAST(", from, " || x'a5' || ", rest,
                         " AS BLOB) WHERE ", where),
            absl::StrCat("UPDATE eta_profiles SET record = set_byte(record, ", at,
                         ", 255 - get_byte(record, ", at, ")) WHERE ", where));
  }

  StorePlace place_;
};
INSTANTIATE_TEST_SUITE_P(Stores, QuarantineTest,
                         ::testing::Values(StoreKind::kSqlite, StoreKind::kPostgres),
                         StoreKindName);

TEST_P(QuarantineTest, ADamagedBlobIsItsOwnTroubleAlone) {
  const auto store = place_.Open();
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(store->Put(kAcme, MakePut(name, 1)).ok());
  ASSERT_TRUE(store->Put(kAcme, MakePut("b", 2)).ok());
  ASSERT_TRUE(store->Put(kOther, MakePut("b", 3)).ok());
  ASSERT_TRUE(store->SetAlias(kAcme, {"b", "stable", 2, {}}).ok());
  FlipByte("tenant = 'acme' AND name = 'b' AND version = 2", 150);

  // Nothing is served in its place, whichever way it is asked for.
  for (const ProfileSelector& selector :
       {ProfileSelector(Newest()), ProfileSelector(int64_t{2}), ProfileSelector("stable")}) {
    const absl::Status status = store->Get(kAcme, "b", selector).status();
    EXPECT_THAT(status, FailsFor(StatusCode::kDataLoss, "PROFILE_CORRUPT"));
  }
  EXPECT_EQ((*store->Get(kAcme, "b", int64_t{1}))->content, MakeContent(1));
  EXPECT_TRUE(store->Get(kAcme, "a", Newest()).ok());
  EXPECT_EQ((*store->Get(kOther, "b", Newest()))->content, MakeContent(3));

  const auto list = store->List(kAcme, {}).value();
  std::vector<std::string> marked;
  for (const ProfileSummary& profile : list.profiles) {
    marked.push_back(profile.name + (profile.corrupt ? "!" : ""));
  }
  EXPECT_THAT(marked, ::testing::ElementsAre("a", "b!", "c"));
  EXPECT_FALSE(store->List(kOther, {})->profiles[0].corrupt);
  const absl::Status health = store->Health();
  EXPECT_THAT(health, FailsFor(StatusCode::kDataLoss, "PROFILE_CORRUPT"));
  EXPECT_EQ(GetErrorDetail(health).metadata["profiles"], "1");
  EXPECT_THAT(health.ToString(), Not(HasSubstr("acme")));

  // A new version mends the name, a deletion the store.
  EXPECT_EQ((*store->Put(kAcme, MakePut("b", 4)))->version, 3);
  EXPECT_EQ((*store->Get(kAcme, "b", Newest()))->content, MakeContent(4));
  EXPECT_TRUE(store->SetAlias(kAcme, {"b", "stable", 1, 2}).ok());
  EXPECT_TRUE(store->Get(kAcme, "b", std::string("stable")).ok());
  EXPECT_FALSE(store->Health().ok());
  ASSERT_TRUE(store->DeleteVersion(kAcme, "b", 2).ok());
  EXPECT_TRUE(store->Health().ok()) << store->Health();
  FlipByte("tenant = 'acme' AND name = 'b' AND version = 3", 150);
  EXPECT_EQ(Reason(store->Get(kAcme, "b", Newest()).status()), "PROFILE_CORRUPT");
  ASSERT_TRUE(store->Delete(kAcme, "b", {}).ok());
  EXPECT_TRUE(store->Health().ok()) << store->Health();
}

TEST_P(QuarantineTest, EveryByteOfABlobIsChecked) {
  const auto store = place_.Open();
  const auto stored = store->Put(kAcme, MakePut("legal", 1));
  ASSERT_TRUE(stored.ok());
  const int64_t bytes = store->List(kAcme, {})->profiles[0].bytes;
  for (int at = 0; at < bytes; at += Rounds(37, 1)) {
    FlipByte("name = 'legal' AND version = 1", at);
    EXPECT_EQ(Reason(store->Get(kAcme, "legal", int64_t{1}).status()), "PROFILE_CORRUPT") << at;
    ASSERT_TRUE(store->Delete(kAcme, "legal", {}).ok());
    // Deleted versions keep their numbers; the row is put back by hand.
    ASSERT_TRUE(store->Put(kAcme, MakePut("fresh", 1)).ok());
    Execute("DELETE FROM eta_profiles WHERE name = 'legal'");
    ASSERT_EQ((*store->Put(kAcme, MakePut("legal", 1)))->version, 1);
  }
}

TEST_P(QuarantineTest, ColumnsThatSayAnotherThingThanTheBlob) {
  const auto store = place_.Open();
  PutProfile put = MakePut("legal", 1);
  put.request_id = "r1";
  put.payload_digest = std::string(64, '1');
  ASSERT_TRUE(store->Put(kAcme, put).ok());
  const auto reason = [&] { return Reason(store->Get(kAcme, "legal", Newest()).status()); };
  for (const auto& [column, bad, good] :
       {std::tuple{"create_time_us", "create_time_us + 1", "create_time_us - 1"},
        std::tuple{"request_id", "'r2'", "'r1'"}, std::tuple{"request_id", "NULL", "'r1'"},
        std::tuple{"payload_digest", "'x'",
                   "'1111111111111111111111111111111111111111111111111111"
                   "111111111111'"},
        std::tuple{"model_fingerprint", "'x'",
                   "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'"},
        std::tuple{"version", "version + 6", "version - 6"}}) {
    Execute(absl::StrCat("UPDATE eta_profiles SET ", column, " = ", bad));
    EXPECT_EQ(reason(), "PROFILE_CORRUPT") << column;
    EXPECT_FALSE(store->Health().ok());
    Execute(absl::StrCat("UPDATE eta_profiles SET ", column, " = ", good));
    EXPECT_EQ(reason(), "") << column;
  }
  // A row in another tenant's place or under another name is not served there.
  Execute("UPDATE eta_profiles SET tenant = 'other'");
  EXPECT_EQ(Reason(store->Get(kOther, "legal", Newest()).status()), "PROFILE_CORRUPT");
  EXPECT_EQ(Reason(store->Get(kAcme, "legal", Newest()).status()), "PROFILE_NOT_FOUND");
  Execute("UPDATE eta_profiles SET tenant = 'acme', name = 'medical'");
  EXPECT_EQ(Reason(store->Get(kAcme, "medical", Newest()).status()), "PROFILE_CORRUPT");
}

// What was replayed is checked too, and not stored anew.
TEST_P(QuarantineTest, AReplayOfADamagedProfileIsDataLoss) {
  const auto store = place_.Open();
  PutProfile put = MakePut("legal", 1);
  put.request_id = "r1";
  put.payload_digest = std::string(64, '1');
  ASSERT_TRUE(store->Put(kAcme, put).ok());
  FlipByte("name = 'legal'", 200);
  EXPECT_EQ(Reason(store->Put(kAcme, put).status()), "PROFILE_CORRUPT");
  EXPECT_EQ(store->ListVersions(kAcme, "legal", {})->profiles.size(), 1u);
}

// Names that could not have been put do not spoil a list, nor its pages.
TEST_P(QuarantineTest, DamagedNamesAreLeftOutOfLists) {
  const auto store = place_.Open();
  for (const char* name : {"a", "b", "c", "d"}) {
    ASSERT_TRUE(store->Put(kAcme, MakePut(name, 1)).ok());
  }
  ASSERT_TRUE(store->SetAlias(kAcme, {"d", "stable", 1, {}}).ok());
  ASSERT_TRUE(store->SetAlias(kAcme, {"d", "next", 1, {}}).ok());
  Execute(
      "UPDATE eta_profiles SET name = CAST(x'62ff' AS TEXT) WHERE name = 'b';"
      "UPDATE eta_aliases SET alias = CAST(x'ff' AS TEXT) WHERE alias = 'next'",
      "UPDATE eta_profiles SET name = 'bÿ' WHERE name = 'b';"
      "UPDATE eta_aliases SET alias = 'ÿ' WHERE alias = 'next'");
  std::string names;
  ProfilePage page{.size = 1, .token = ""};
  do {
    const auto list = store->List(kAcme, page).value();
    for (const ProfileSummary& profile : list.profiles) names += profile.name;
    page.token = list.next_token;
  } while (!page.token.empty());
  EXPECT_EQ(names, "acd");
  EXPECT_EQ(Reason(store->Health()), "PROFILE_CORRUPT");
  EXPECT_EQ(store->ListAliases(kAcme, "d")->size(), 1u);
}

// It is no damage: another build's profile lies beside ours.
TEST_P(QuarantineTest, AProfileOfAnotherSchemaIsFailedPrecondition) {
  const auto store = place_.Open();
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  std::string blob = "ETAP";
  static_assert(kProfileSchemaVersion == 6);
  blob += std::string("\x05\0\0\0", 4) + std::string(100, 'x');
  blob += Sha256Hex(blob).value();
  std::string hex;
  for (const unsigned char byte : blob) absl::StrAppend(&hex, absl::Hex(byte, absl::kZeroPad2));
  Execute(absl::StrCat("UPDATE eta_profiles SET record = x'", hex, "'"),
          absl::StrCat("UPDATE eta_profiles SET record = '\\x", hex, "'"));
  const absl::Status status = store->Get(kAcme, "legal", Newest()).status();
  EXPECT_THAT(status, FailsFor(StatusCode::kFailedPrecondition, "PROFILE_SCHEMA_MISMATCH"));
  EXPECT_TRUE(store->Health().ok());
}

// Any bit of the file: the store refuses the file, or it refuses the profile, or the profile is
// right. None is hidden by a damaged index.
TEST(SqliteDamage, NoFlippedBitMakesAWrongProfile) {
  const TempFolder folder(FastParent());
  const std::string path = folder.Write("profiles.db", "");
  const std::vector<Tenant> tenants = {kAcme, kOther};
  StoreState state;
  std::mt19937 random(1);
  {
    const auto store = OpenProfileStore(path, StorePlace::FastOptions()).value();
    for (int i = 0; i < 60; ++i) {
      ASSERT_TRUE(Take(DrawStep(random, tenants), *store, state).ok());
    }
  }
  const std::string sound = ReadFile(path);
  int refused = 0, lost = 0;
  for (int round = 0; round < Rounds(200, 10'000); ++round) {
    std::string damaged = sound;
    const size_t at = random() % damaged.size();
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(path + suffix);
    folder.Write("profiles.db", damaged);
    ProfileStoreOptions options = StorePlace::FastOptions();
    options.poll_interval = std::chrono::hours(1);
    const auto store = OpenProfileStore(path, options);
    if (!store.ok()) {
      EXPECT_TRUE(store.status().code() == StatusCode::kDataLoss ||
                  Reason(store.status()) == "STORE_SCHEMA_TOO_NEW")
          << at << ": " << store.status();
      ++refused;
      continue;
    }
    for (const auto& [key, profile] : state) {
      for (const auto& [version, seed] : profile.versions) {
        const auto read = (*store)->Get(key.first, key.second, version);
        if (read.ok()) {
          EXPECT_EQ((*read)->content, ContentOf(seed, key.first)) << at;
        } else if (read.status().code() == StatusCode::kDataLoss) {
          ++lost;
        } else {
          ADD_FAILURE() << at << ": " << read.status();
        }
      }
      (void)(*store)->List(key.first, {});
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(lost, 0);
}

}  // namespace
}  // namespace eta
