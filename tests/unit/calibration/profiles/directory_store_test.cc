// A folder of JSON profiles: swapped whole, as a mounted ConfigMap is, and never half taken over.
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "calibration/profiles/profile_json.h"
#include "calibration/profiles/store/open_profile_store.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/system/failpoint.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/profiles/store_case.h"

namespace eta {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string Json(const std::string& name, int64_t version, uint32_t seed) {
  return ProfileToJson(
             {.name = name, .version = version, .create_time_us = 1, .content = MakeContent(seed)})
      .value();
}

class DirectoryStore : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<ProfileStore>> Open() {
    return OpenProfileStore("dir:" + folder_.path(), StorePlace::FastOptions());
  }
  // The newest version that the store shows; 0: none.
  static int64_t NewestVersion(const ProfileStore& store) {
    const auto profile = store.Get(kAcme, "legal", Newest());
    return profile.ok() ? (*profile)->version : 0;
  }

  TempFolder folder_;
};

TEST_F(DirectoryStore, WritesAreRefusedNamingTheStore) {
  const auto store = Open().value();
  for (const absl::Status& status :
       {store->Put(kAcme, MakePut("legal", 1)).status(),
        store->CheckPut(kAcme, MakePut("legal", 1)).status(),
        store->SetAlias(kAcme, {"legal", "stable", 1, {}}),
        store->Promote(kAcme, {.name = "legal", .version = 1}),
        store->DeleteVersion(kAcme, "legal", 1), store->Delete(kAcme, "x", {})}) {
    EXPECT_THAT(status, FailsFor(StatusCode::kFailedPrecondition, "STORE_READ_ONLY"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("dir:"));
  }
}

// kubelet writes a new folder, then renames a symbolic link to it over ..data.
TEST_F(DirectoryStore, AConfigMapIsSwappedWhole) {
  const fs::path mount = fs::path(folder_.path()) / "acme";
  const auto publish = [&](int64_t version) {
    const std::string stamp = "..2024_" + std::to_string(version);
    fs::create_directories(mount / stamp);
    folder_.Write("acme/" + stamp + "/legal.json", Json("legal", version, uint32_t(version)));
    folder_.Write("acme/" + stamp + "/aliases.json",
                  "{\"legal\": {\"stable\": " + std::to_string(version) + "}}");
    fs::create_directory_symlink(stamp, mount / "..data_tmp");
    fs::rename(mount / "..data_tmp", mount / "..data");
  };
  publish(1);
  fs::create_symlink("..data/legal.json", mount / "legal.json");
  fs::create_symlink("..data/aliases.json", mount / "aliases.json");
  const auto store = Open().value();
  for (int64_t version = 2; version <= 5; ++version) {
    publish(version);
    ASSERT_TRUE(Eventually([&] { return NewestVersion(*store) == version; }));
    EXPECT_GE(store->Get(kAcme, "legal", std::string("stable")).value()->version, version);
    EXPECT_TRUE(store->Health().ok()) << store->Health();
  }
}

TEST_F(DirectoryStore, ABadFileLeavesTheLastGoodSet) {
  fs::create_directories(folder_.path() + "/acme");
  folder_.Write("acme/legal.json", Json("legal", 1, 1));
  const auto store = Open().value();
  folder_.Write("acme/next.json", Json("legal", 2, 2));
  ASSERT_TRUE(Eventually([&] { return NewestVersion(*store) == 2; }));

  folder_.Write("acme/legal.json", Json("legal", 3, 3));
  folder_.Write("acme/bad.json", "{\"format\": \"eta-profile\"}");
  ASSERT_TRUE(Eventually([&] { return !store->Health().ok(); }));
  EXPECT_THAT(std::string(store->Health().message()), HasSubstr("acme/bad.json"));
  // Whether the good file was seen before the bad one or with it, the set is one that was whole.
  EXPECT_GE(NewestVersion(*store), 2);
  fs::remove(folder_.path() + "/acme/bad.json");
  ASSERT_TRUE(Eventually([&] { return store->Health().ok(); }));
  EXPECT_EQ(NewestVersion(*store), 3);

  // The folder goes away as a whole: the profiles stay.
  fs::rename(folder_.path() + "/acme", folder_.path() + "/.acme");
  ASSERT_TRUE(Eventually([&] { return NewestVersion(*store) == 0; }));
  fs::rename(folder_.path() + "/.acme", folder_.path() + "/acme");
  ASSERT_TRUE(Eventually([&] { return NewestVersion(*store) == 3; }));
}

#ifdef ETA_FAILPOINTS
class DirectoryFailpoint : public DirectoryStore {
 protected:
  ~DirectoryFailpoint() override { DisarmFailpoints(); }
};

TEST_F(DirectoryFailpoint, FilesThatCannotBeReadAreReadAtTheNextLook) {
  fs::create_directories(folder_.path() + "/acme");
  folder_.Write("acme/legal.json", Json("legal", 1, 1));
  const auto store = Open().value();
  int64_t version = 1;
  for (const Failpoint point : {Failpoint::kFileOpen, Failpoint::kFileRead}) {
    const std::string next = std::to_string(++version) + ".json";
    folder_.Write("acme/.next", Json("legal", version, uint32_t(version)));
    ArmFailpoint(point, {});
    fs::rename(folder_.path() + "/acme/.next", folder_.path() + "/acme/" + next);
    ASSERT_TRUE(Eventually([&] { return !store->Health().ok(); }));
    EXPECT_EQ(NewestVersion(*store), version - 1);
    DisarmFailpoints();
    ASSERT_TRUE(Eventually([&] { return store->Health().ok(); })) << store->Health();
    EXPECT_EQ(NewestVersion(*store), version);
  }
}

// Reading a large folder again and again is work for nothing.
TEST_F(DirectoryFailpoint, ABadFileIsNotReadAgain) {
  fs::create_directories(folder_.path() + "/acme");
  const auto store = Open().value();
  folder_.Write("acme/.bad", "{}");
  fs::create_symlink("nowhere", folder_.path() + "/acme/.gone");
  for (const std::string name : {"bad", "gone"}) {
    const std::string path = folder_.path() + "/acme/" + name + ".json";
    fs::rename(folder_.path() + "/acme/." + name, path);
    ASSERT_TRUE(Eventually([&] { return !store->Health().ok(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the look that told it is over
    const int64_t strikes = FailpointStrikes(Failpoint::kFileOpen);
    ArmFailpoint(Failpoint::kFileOpen, {});
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // ten looks
    EXPECT_EQ(FailpointStrikes(Failpoint::kFileOpen), strikes) << name;
    DisarmFailpoints();
    fs::remove(path);
    ASSERT_TRUE(Eventually([&] { return store->Health().ok(); }));
  }
}
#endif

TEST_F(DirectoryStore, AFileOfAnotherSchemaIsRefusedByItsNameAndKeepsNothingElse) {
  fs::create_directories(folder_.path() + "/acme");
  const auto of_schema = [](int64_t version, int schema) {
    nlohmann::json json = nlohmann::json::parse(Json("legal", version, uint32_t(version)));
    json["schema_version"] = schema;
    json.erase("evidence");  // whatever it had
    return json.dump();
  };
  folder_.Write("acme/a.json", Json("legal", 1, 1));
  folder_.Write("acme/b.json", Json("code", 1, 2));
  folder_.Write("acme/old.json", of_schema(2, kProfileSchemaVersion - 1));
  folder_.Write("acme/aliases.json", "{\"legal\": {\"stable\": 2}}");
  const auto store = Open().value();
  EXPECT_TRUE(store->Health().ok());
  EXPECT_TRUE(store->Get(kAcme, "code", Newest()).ok());
  EXPECT_TRUE(store->Get(kAcme, "legal", int64_t{1}).ok());
  for (const ProfileSelector& selector :
       {ProfileSelector(Newest()), ProfileSelector(int64_t{2}), ProfileSelector("stable")}) {
    const absl::Status status = store->Get(kAcme, "legal", selector).status();
    EXPECT_EQ(Reason(status), "PROFILE_SCHEMA_MISMATCH");
    EXPECT_THAT(std::string(status.message()), HasSubstr("acme/old.json"));
  }
  EXPECT_EQ(store->List(kAcme, {})->profiles.size(), 2u);
  EXPECT_EQ(store->ListVersions(kAcme, "legal", {})->profiles.size(), 2u);
  folder_.Write("acme/old.json", Json("legal", 2, 2));  // calibrated anew
  ASSERT_TRUE(Eventually([&] { return store->Get(kAcme, "legal", Newest()).ok(); }));
  fs::remove(folder_.path() + "/acme/aliases.json");
  nlohmann::json estimate = nlohmann::json::parse(Json("legal", 2, 2));
  estimate["relative_threshold"] = -3.9;  // by the schema, of an earlier estimate of masses
  folder_.Write("acme/old.json", estimate.dump());
  ASSERT_TRUE(Eventually([&] { return !store->Get(kAcme, "legal", Newest()).ok(); }));
  EXPECT_EQ(Reason(store->Get(kAcme, "legal", Newest()).status()), "PROFILE_SCHEMA_MISMATCH");
  EXPECT_TRUE(store->Get(kAcme, "code", Newest()).ok());
  folder_.Write("acme/old.json", "{\"format\": \"eta-profile\", \"schema_version\": 5}");
  EXPECT_FALSE(Open().ok()) << "it does not say which profile it is";
}

// bad input: Profiles | aliases.json with an empty list, a version twice, two versions for one
//   model | exit code 2, file and field named; a folder that becomes so keeps the last good set
TEST_F(DirectoryStore, BadContentsAtTheStartAreAnError) {
  fs::create_directories(folder_.path() + "/acme");
  const auto refused = [&](const std::string& file, const std::string& text) {
    folder_.Write("acme/" + file, text);
    const absl::Status status = Open().status();
    fs::remove(folder_.path() + "/acme/" + file);
    EXPECT_THAT(std::string(status.message()), HasSubstr("acme/" + file));
    return status.code();
  };
  folder_.Write("acme/a.json", Json("legal", 1, 1));
  ASSERT_TRUE(Open().ok()) << Open().status();
  EXPECT_EQ(refused("b.json", Json("legal", 1, 2)), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused("b.json", ""), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused("aliases.json", "{\"legal\": {\"stable\": 2}}"), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused("aliases.json", "{\"none\": {\"stable\": 1}}"), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused("aliases.json", "{\"legal\": {\"1\": 1}}"), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused("aliases.json", "{\"legal\": {\"x\": 1, \"x\": 1}}"),
            StatusCode::kInvalidArgument);
  for (const std::string bad :
       {"[]", "[1, 1]", "[1, 2]", "[\"1\"]", "[[1]]", "\"1\"", "1.0", "{}"}) {
    EXPECT_EQ(refused("aliases.json", "{\"legal\": {\"stable\": " + bad + "}}"),
              StatusCode::kInvalidArgument)
        << bad;
  }
  // What is no profile by its name is none.
  folder_.Write("acme/README.md", "x");
  folder_.Write("note.txt", "x");
  folder_.Write("acme/.hidden.json", "x");
  EXPECT_TRUE(Open().ok());
}

}  // namespace
}  // namespace eta
