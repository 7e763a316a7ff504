// Versions for several models under one name: each server finds those for the model that it serves.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/profiles/store_case.h"

namespace eta {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;

std::string Model(char digit) {
  return std::string(64, digit);
}

// For the model of a fingerprint.
ProfileContent ContentFor(char digit, uint32_t seed) {
  ProfileContent content = MakeContent(seed);
  content.model_fingerprint = Model(digit);
  return content;
}

PutProfile PutFor(char digit, uint32_t seed, std::optional<int64_t> expected = std::nullopt) {
  PutProfile put = MakePut("legal", seed, expected);
  put.content = ContentFor(digit, seed);
  return put;
}

// A store on any of the places, as a server of one model opens it.
class ModelsTest : public ::testing::TestWithParam<StoreKind> {
 protected:
  ModelsTest() : place_(GetParam()) {}
  void SetUp() override {
    if (!place_.missing().empty()) GTEST_SKIP() << place_.missing();
  }
  std::unique_ptr<ProfileStore> Serving(char digit) const {
    ProfileStoreOptions options = StorePlace::FastOptions();
    options.served_model = [digit] { return ServedModel{.fingerprint = Model(digit)}; };
    return place_.Open(options);
  }
  // The version that a reference means; 0 if the name has none for the model.
  static int64_t VersionOf(const ProfileStore& store, const ProfileSelector& selector) {
    const auto found = store.Get(kAcme, "legal", selector);
    if (found.ok()) return (*found)->version;
    EXPECT_EQ(found.status().code(), StatusCode::kFailedPrecondition) << found.status();
    EXPECT_EQ(GetErrorDetail(found.status()).reason, "PROFILE_MISMATCH");
    return 0;
  }
  // "stable" for versions of different models.
  void Alias(const std::vector<int64_t>& versions) const {
    if (GetParam() == StoreKind::kDirectory) {
      std::string list;
      for (const int64_t version : versions) {
        list += (list.empty() ? "" : ", ") + std::to_string(version);
      }
      place_.Write("acme/aliases.json", "{\"legal\": {\"stable\": [" + list + "]}}");
      return;
    }
    for (const int64_t version : versions) place_.SeedAlias("acme", "legal", "stable", version);
  }

  const StorePlace place_;
  const ProfileSelector stable_ = std::string("stable");
};
class WrittenModelsTest : public ModelsTest {};

INSTANTIATE_TEST_SUITE_P(Stores, ModelsTest,
                         ::testing::Values(StoreKind::kSqlite, StoreKind::kPostgres,
                                           StoreKind::kDirectory),
                         StoreKindName);
INSTANTIATE_TEST_SUITE_P(Stores, WrittenModelsTest,
                         ::testing::Values(StoreKind::kSqlite, StoreKind::kPostgres),
                         StoreKindName);

TEST_P(ModelsTest, EachServerFindsTheNewestVersionForItsModel) {
  place_.Seed("acme", "legal", 1, ContentFor('a', 1));
  place_.Seed("acme", "legal", 2, ContentFor('b', 2));
  place_.Seed("acme", "legal", 3, ContentFor('a', 3));
  place_.Seed("acme", "legal", 4, ContentFor('b', 4));
  const auto a = Serving('a'), b = Serving('b'), c = Serving('c');
  EXPECT_EQ((*a->Get(kAcme, "legal", Newest()))->content, ContentFor('a', 3));
  EXPECT_EQ((*b->Get(kAcme, "legal", Newest()))->content, ContentFor('b', 4));
  EXPECT_EQ((*place_.Open()->Get(kAcme, "legal", Newest()))->version, 4);
  EXPECT_EQ(VersionOf(*a, int64_t{4}), 4) << "whoever uses it checks whether it fits";

  ErrorDetail none = GetErrorDetail(c->Get(kAcme, "legal", Newest()).status());
  EXPECT_EQ(none.reason, "PROFILE_MISMATCH");
  EXPECT_EQ(none.metadata["mismatch"], "model_fingerprint");
  EXPECT_EQ(none.metadata["profile"], Model('b'));
  EXPECT_EQ(none.metadata["served"], Model('c'));
  EXPECT_EQ(c->Get(kAcme, "absent", Newest()).status().code(), StatusCode::kNotFound);
}

TEST_P(ModelsTest, ListsNameTheModelOfEachVersion) {
  place_.Seed("acme", "legal", 1, ContentFor('a', 1));
  place_.Seed("acme", "legal", 2, ContentFor('b', 2));
  const auto newest = [](const ProfileStore& store) {
    const auto list = store.List(kAcme, {});
    EXPECT_TRUE(list.ok()) << list.status();
    EXPECT_EQ(list->profiles.size(), 1u);
    return std::pair(list->profiles[0].version, list->profiles[0].model_fingerprint);
  };
  EXPECT_EQ(newest(*Serving('a')), std::pair(int64_t{1}, Model('a')));
  EXPECT_EQ(newest(*Serving('b')), std::pair(int64_t{2}, Model('b')));
  EXPECT_EQ(newest(*Serving('c')), std::pair(int64_t{2}, Model('b'))) << "it has none: the highest";
  std::vector<std::string> models;
  const auto versions = Serving('a')->ListVersions(kAcme, "legal", {}).value();
  for (const ProfileSummary& version : versions.profiles) {
    models.push_back(version.model_fingerprint);
  }
  EXPECT_THAT(models, ElementsAre(Model('b'), Model('a')));
}

TEST_P(ModelsTest, AnAliasNamesAVersionForEachModel) {
  place_.Seed("acme", "legal", 1, ContentFor('a', 1));
  place_.Seed("acme", "legal", 2, ContentFor('b', 2));
  place_.Seed("acme", "legal", 3, ContentFor('a', 3));
  Alias({1, 2});
  EXPECT_EQ(VersionOf(*Serving('a'), stable_), 1);
  EXPECT_EQ(VersionOf(*Serving('b'), stable_), 2);
  EXPECT_EQ(VersionOf(*Serving('c'), stable_), 0);
  const auto store = Serving('a');
  EXPECT_EQ(store->Get(kAcme, "legal", std::string("absent")).status().code(),
            StatusCode::kNotFound);
  std::vector<int64_t> named;
  const auto aliases = store->ListAliases(kAcme, "legal").value();
  for (const ProfileAlias& alias : aliases) {
    EXPECT_EQ(alias.alias, "stable");
    named.push_back(alias.version);
  }
  EXPECT_THAT(named, ::testing::UnorderedElementsAre(1, 2));
}

TEST_P(WrittenModelsTest, ConditionsCountTheVersionsOfOneModel) {
  const auto a = Serving('a'), b = Serving('b');
  EXPECT_EQ((*a->Put(kAcme, PutFor('a', 1, 0)))->version, 1);
  EXPECT_EQ((*b->Put(kAcme, PutFor('b', 2, 0)))->version, 2) << "the name is free for this model";
  EXPECT_EQ((*a->Put(kAcme, PutFor('a', 3, 1)))->version, 3);
  EXPECT_EQ(b->Put(kAcme, PutFor('b', 4, 3)).status().code(), StatusCode::kAborted);
  EXPECT_EQ((*b->Put(kAcme, PutFor('b', 4, 2)))->version, 4);
  EXPECT_EQ((*a->Put(kAcme, PutFor('b', 5, 4)))->version, 5) << "a file of another model";

  // The content, and with it its model, is not known yet: it will be the served one.
  PutProfile unmade = MakePut("legal", 0, 3);
  unmade.content = {};
  EXPECT_TRUE(a->CheckPut(kAcme, unmade).ok());
  EXPECT_EQ(b->CheckPut(kAcme, unmade).status().code(), StatusCode::kAborted);
}

TEST_P(WrittenModelsTest, AliasesMoveForOneModelAlone) {
  const auto a = Serving('a'), b = Serving('b');
  for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
    ASSERT_TRUE(a->Put(kAcme, PutFor(seed % 2 == 1 ? 'a' : 'b', seed)).ok());
  }
  ASSERT_TRUE(a->SetAlias(kAcme, {"legal", "stable", 1, 0}).ok());
  ASSERT_TRUE(a->SetAlias(kAcme, {"legal", "stable", 2, 0}).ok()) << "free for that model";
  ASSERT_TRUE(b->SetAlias(kAcme, {"legal", "stable", 3, 1}).ok()) << "whoever asks";
  EXPECT_EQ(a->SetAlias(kAcme, {"legal", "stable", 4, 3}).code(), StatusCode::kAborted);
  EXPECT_EQ(VersionOf(*a, stable_), 3);
  EXPECT_EQ(VersionOf(*b, stable_), 2);
  // A conditional removal is of that version, another of the alias.
  EXPECT_EQ(a->SetAlias(kAcme, {"legal", "stable", 0, 1}).code(), StatusCode::kAborted);
  ASSERT_TRUE(a->SetAlias(kAcme, {"legal", "stable", 0, 3}).ok());
  EXPECT_EQ(VersionOf(*a, stable_), 0);
  EXPECT_EQ(VersionOf(*b, stable_), 2);
  ASSERT_TRUE(a->SetAlias(kAcme, {"legal", "stable", 3, 0}).ok());
  ASSERT_TRUE(a->SetAlias(kAcme, {"legal", "stable", 0, {}}).ok());
  EXPECT_EQ(b->Get(kAcme, "legal", stable_).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace eta
