// Many tenants with the same names in one store: each sees what it would see alone, in answers,
// errors and the work that is done for them.
#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "calibration/profiles/profile_json.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/profiles/store_case.h"
#include "tests/testing/profiles/store_model.h"

namespace eta {
namespace {

using absl::StatusCode;

constexpr std::array kNames = {"legal", "medical", "code", "chat"};

// No two share more than the word.
std::vector<Tenant> Canaries(int count) {
  std::vector<Tenant> tenants;
  for (int i = 0; i < count; ++i) {
    tenants.push_back(TenantOf(absl::StrCat("canary-", i * 7919 % 10007, "-", i)));
  }
  return tenants;
}

class TenancyTest : public ::testing::TestWithParam<StoreKind> {
 protected:
  TenancyTest() : place_(GetParam()) {}
  void SetUp() override {
    if (!place_.missing().empty()) GTEST_SKIP() << place_.missing();
    ProfileStoreOptions options = StorePlace::FastOptions();
    options.quota = {.versions = 100'000, .bytes = int64_t{1} << 30, .versions_ever = 1'000'000};
    if (GetParam() == StoreKind::kDirectory) MakeFolder();
    store_ = place_.Open(options);
  }
  // What the tenants of a folder have is fixed.
  void MakeFolder() {
    for (const Tenant& tenant : tenants_) {
      std::vector<std::string> aliases;
      for (const char* name : kNames) {
        ModelProfile& profile = state_[{tenant, name}];
        for (uint32_t i = 0; i < random_() % 4; ++i) {
          const auto version = static_cast<int64_t>(1 + random_() % 5);
          const auto seed = static_cast<uint32_t>(random_());
          if (!profile.versions.emplace(version, seed).second) continue;
          profile.last = std::max(profile.last, version);
          place_.Seed(tenant.id(), name, version, ContentOf(seed, tenant));
        }
        if (profile.versions.empty()) continue;
        profile.aliases["stable"] = profile.versions.begin()->first;
        aliases.push_back(
            absl::StrCat("\"", name, "\": {\"stable\": ", profile.aliases["stable"], "}"));
      }
      place_.Write(tenant.id() + "/aliases.json", "{" + absl::StrJoin(aliases, ", ") + "}");
    }
  }

  // Nothing of another tenant's, and nothing of this tenant's either: errors name no tenant.
  static void ExpectNoCanary(const absl::Status& status) {
    EXPECT_EQ(status.ToString().find("canary"), std::string::npos) << status;
  }
  const ModelProfile& Model(const Tenant& tenant, const std::string& name) const {
    static const ModelProfile kNone;
    const auto found = state_.find({tenant, name});
    return found == state_.end() ? kNone : found->second;
  }

  void ExpectGet(const Tenant& tenant, const std::string& name, const ProfileSelector& selector) {
    const ModelProfile& model = Model(tenant, name);
    int64_t version = model.versions.empty() ? 0 : model.versions.rbegin()->first;
    if (const auto* number = std::get_if<int64_t>(&selector)) version = *number;
    if (const auto* alias = std::get_if<std::string>(&selector)) {
      const auto named = model.aliases.find(*alias);
      version = named == model.aliases.end() ? 0 : named->second;
    }
    const auto seed = model.versions.find(version);
    const auto read = store_->Get(tenant, name, selector);
    ExpectNoCanary(read.status());
    if (seed == model.versions.end()) {
      EXPECT_EQ(read.status().code(), StatusCode::kNotFound) << read.status();
      return;
    }
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ((*read)->tenant, tenant);
    EXPECT_EQ((*read)->version, version);
    EXPECT_EQ((*read)->content.labels.at("owner"), tenant.id());
    EXPECT_EQ((*read)->content.labels.at("seed"), absl::StrCat(seed->second));
  }
  void ExpectLists(const Tenant& tenant, const std::string& name, const Tenant& other) {
    std::vector<std::string> expected, found;
    for (const auto& [key, profile] : Visible(state_)) {
      if (key.first == tenant) {
        expected.push_back(absl::StrCat(key.second, "@", profile.versions.rbegin()->first));
      }
    }
    ProfilePage page{.size = static_cast<int32_t>(1 + random_() % 4), .token = ""};
    do {
      const auto list = store_->List(tenant, page);
      ASSERT_TRUE(list.ok()) << list.status();
      for (const ProfileSummary& profile : list->profiles) {
        found.push_back(absl::StrCat(profile.name, "@", profile.version));
      }
      page.token = list->next_token;
      if (page.token.empty()) break;
      const absl::Status foreign = store_->List(other, page).status();
      EXPECT_EQ(foreign.code(), StatusCode::kInvalidArgument);
      ExpectNoCanary(foreign);
    } while (true);
    EXPECT_EQ(found, expected);

    const ModelProfile& model = Model(tenant, name);
    const auto versions = store_->ListVersions(tenant, name, {.size = 1000, .token = ""});
    ExpectNoCanary(versions.status());
    EXPECT_EQ(versions.ok(), !model.versions.empty()) << versions.status();
    if (versions.ok()) {
      EXPECT_EQ(versions->profiles.size(), std::min<size_t>(model.versions.size(), 1000));
      EXPECT_EQ(versions->profiles[0].version, model.versions.rbegin()->first);
    }
    const auto aliases = store_->ListAliases(tenant, name);
    ASSERT_TRUE(aliases.ok()) << aliases.status();
    EXPECT_EQ(aliases->size(), model.aliases.size());
  }

  const std::vector<Tenant> tenants_ = Canaries(50);
  std::mt19937 random_{1};
  StorePlace place_;
  std::unique_ptr<ProfileStore> store_;
  StoreState state_;
};
INSTANTIATE_TEST_SUITE_P(Stores, TenancyTest,
                         ::testing::Values(StoreKind::kSqlite, StoreKind::kPostgres,
                                           StoreKind::kDirectory),
                         StoreKindName);

TEST_P(TenancyTest, EachSeesWhatItWouldSeeAlone) {
  const bool writes = GetParam() != StoreKind::kDirectory;
  const int operations =
      GetParam() == StoreKind::kPostgres ? Rounds(2'000, 100'000) : Rounds(20'000, 1'000'000);
  for (int i = 0; i < operations && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const Tenant& tenant = tenants_[random_() % tenants_.size()];
    const Tenant& other = tenants_[(random_() % (tenants_.size() - 1) + 1) % tenants_.size()];
    const std::string name = kNames[random_() % kNames.size()];
    switch (random_() % 10) {
      case 0:
      case 1:
        if (!writes) break;
        ASSERT_TRUE(Take(DrawStep(random_, {tenant}), *store_, state_).ok());
        break;
      case 2:  // some, since each reads all that a tenant has, hundreds of versions in a long run
        if (random_() % 4 == 0 && !(tenant == other)) ExpectLists(tenant, name, other);
        break;
      case 3:
      case 4:
        ExpectGet(tenant, name, static_cast<int64_t>(1 + random_() % 9));
        break;
      case 5:
      case 6:
        ExpectGet(tenant, name, std::string(random_() % 2 == 0 ? "stable" : "canary"));
        break;
      default:
        ExpectGet(tenant, name, Newest());
    }
  }
  ExpectNoCanary(store_->Health());
}

// What SQLite has done: its statements, how many steps of its machine each took, and the triggers
// that ran before it was done.
class Work {
 public:
  Work() { sqlite3_auto_extension(Entry()); }
  ~Work() { sqlite3_cancel_auto_extension(Entry()); }

  template <typename Call>
  static std::string Of(Call call) {
    log_.clear();
    const absl::Status status = call();
    return absl::StrCat(log_, status.ToString());
  }

 private:
  static int Trace(unsigned event, void* /*context*/, void* statement, void* begun) {
    if (event == SQLITE_TRACE_STMT) {
      const auto* text = static_cast<const char*>(begun);
      if (absl::StartsWith(text, "-- TRIGGER")) absl::StrAppend(&log_, text, "\n");
      return 0;
    }
    auto* done = static_cast<sqlite3_stmt*>(statement);
    absl::StrAppend(&log_, sqlite3_sql(done), ": ",
                    sqlite3_stmt_status(done, SQLITE_STMTSTATUS_VM_STEP, 1), "\n");
    return 0;
  }
  static int Install(sqlite3* handle, char** /*error*/, const void* /*api*/) {
    return sqlite3_trace_v2(handle, SQLITE_TRACE_STMT | SQLITE_TRACE_PROFILE, Trace, nullptr);
  }
  static void (*Entry())() { return reinterpret_cast<void (*)()>(Install); }

  static std::string log_;
};
std::string Work::log_;

// A store that does nothing but what it is asked.
class SqliteTenancy : public ::testing::Test {
 protected:
  static ProfileStoreOptions Unpolled() {
    ProfileStoreOptions options = StorePlace::FastOptions();
    options.poll_interval = std::chrono::hours(1);
    return options;
  }

  const Work work_;
  const StorePlace place_{StoreKind::kSqlite};
  const std::unique_ptr<ProfileStore> store_ = place_.Open(Unpolled());
};

// Timing tells nothing, by construction: what another tenant has makes no step more or less.
TEST_F(SqliteTenancy, ForeignNamesAndUnknownOnesAreTheSameWork) {
  const Tenant owner = TenantOf("acme"), other = TenantOf("other");
  for (uint32_t i = 0; i < 20; ++i) ASSERT_TRUE(store_->Put(owner, MakePut("legal", i)).ok());
  ASSERT_TRUE(store_->SetAlias(owner, {"legal", "stable", 3, {}}).ok());
  ASSERT_TRUE(store_->Put(other, MakePut("mine", 1)).ok());
  ASSERT_TRUE(store_->Get(other, "mine", Newest()).ok());  // the first read opens a handle

  const auto expect_same = [&](auto call) {
    const std::string foreign = Work::Of([&] { return call("legal"); });
    EXPECT_EQ(foreign, Work::Of([&] { return call("absent"); }));
    EXPECT_THAT(foreign, ::testing::HasSubstr("SELECT"));
  };
  using Name = std::string;
  expect_same([&](const Name& name) { return store_->Get(other, name, Newest()).status(); });
  expect_same([&](const Name& name) { return store_->Get(other, name, int64_t{3}).status(); });
  expect_same([&](const Name& name) { return store_->Get(other, name, Name("stable")).status(); });
  expect_same([&](const Name& name) { return store_->ListVersions(other, name, {}).status(); });
  expect_same([&](const Name& name) { return store_->ListAliases(other, name).status(); });
  expect_same([&](const Name& name) { return store_->SetAlias(other, {name, "stable", 3, {}}); });
  expect_same(
      [&](const Name& name) { return store_->Promote(other, {.name = name, .version = 3}); });
  expect_same([&](const Name& name) { return store_->DeleteVersion(other, name, 3); });
  expect_same([&](const Name& name) { return store_->Delete(other, name, std::nullopt); });
  // What is its own takes other steps: the comparison can fail.
  EXPECT_NE(Work::Of([&] { return store_->Get(other, "mine", Newest()).status(); }),
            Work::Of([&] { return store_->Get(other, "legal", Newest()).status(); }));
}

// Writes wait for each other: a tenant would slow those of others by what it has stored.
TEST_F(SqliteTenancy, ManyVersionsMakeNoPutLonger) {
  const Tenant tenant = TenantOf("acme");
  for (uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(store_->Put(tenant, MakePut("few", i)).ok());
  for (uint32_t i = 0; i < 200; ++i) ASSERT_TRUE(store_->Put(tenant, MakePut("many", i)).ok());
  const auto put = [&](const char* name) {
    return Work::Of([&] { return store_->Put(tenant, MakePut(name, 200)).status(); });
  };
  const std::string few = put("few");
  EXPECT_EQ(few, put("many"));
  EXPECT_THAT(few, ::testing::HasSubstr("SELECT"));
}

// A trigger runs for each row that is written, and what was deleted is remembered as a row.
TEST_F(SqliteTenancy, DeletedVersionsAreNotWrittenAgain) {
  const Tenant tenant = TenantOf("acme");
  const auto triggers = [&] {
    const std::string work =
        Work::Of([&] { return store_->Delete(tenant, "legal", std::nullopt); });
    const std::vector<std::string> parts = absl::StrSplit(work, "-- TRIGGER");
    return parts.size() - 1;
  };
  for (uint32_t i = 0; i < 20; ++i) ASSERT_TRUE(store_->Put(tenant, MakePut("legal", i)).ok());
  EXPECT_EQ(triggers(), 20u);
  ASSERT_TRUE(store_->Put(tenant, MakePut("legal", 20)).ok());
  EXPECT_EQ(triggers(), 1u);
}

}  // namespace
}  // namespace eta
