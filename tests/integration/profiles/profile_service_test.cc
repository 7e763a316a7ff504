// The calls about stored profiles, over a real socket and with a real store.
#include "calibration/profiles/profile_json.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/net/generic_call.h"
#include "tests/testing/service/profile_service_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(ProfileServiceTest, WhatIsExportedIsImportedToTheBit) {
  const v1::Profile first = Import("legal", 3);
  EXPECT_EQ(first.name(), "legal");
  EXPECT_EQ(first.version(), 1) << "its own, not the file's";
  v1::ExportProfileRequest request;
  request.set_profile("legal@1");
  v1::ExportProfileResponse file;
  ASSERT_TRUE(Call(&Stub::ExportProfile, request, file).ok());
  const auto parsed = ProfileFromJson(file.json());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->content, MakeContent(3, 2, 4));

  v1::ImportProfileRequest copy;
  copy.set_json(file.json());
  copy.set_name("copy");
  v1::Profile second;
  ASSERT_TRUE(Call(&Stub::ImportProfile, copy, second).ok());
  EXPECT_EQ(second.name(), "copy");
  EXPECT_THAT(second.thresholds(), ::testing::ElementsAreArray(first.thresholds()));
  EXPECT_EQ(second.target().union_density(), first.target().union_density());
}

TEST_F(ProfileServiceTest, AnImportedProfileIsUsedAtOnce) {
  v1::GenerateRequest generate = Ask("hello");
  generate.mutable_attention()->set_profile("legal");
  EXPECT_EQ(ReasonOf(ClientCall(*stub_).Refusal(generate)), "PROFILE_NOT_FOUND");
  const ProfileContent content = FittingContent(3);
  v1::ImportProfileRequest request;
  request.set_json(*ProfileToJson({.name = "legal", .version = 1, .content = content}));
  grpc::ClientContext context;
  v1::Profile profile;
  ASSERT_TRUE(profile_stub_->ImportProfile(&context, request, &profile).ok());
  ClientCall client(*stub_);
  client.Start(generate);
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr) << client.Finish().error_message();
  EXPECT_THAT(call->request().attention.profile->thresholds,
              ::testing::ElementsAreArray(content.thresholds));
  call->Start();
  call->Finish();
  client.ReadText();
  EXPECT_TRUE(client.Finish().ok());
}

TEST_F(ProfileServiceTest, ListsByPages) {
  v1::ListProfilesResponse page;
  ASSERT_TRUE(Call(&Stub::ListProfiles, v1::ListProfilesRequest(), page).ok());
  EXPECT_THAT(page.profiles(), IsEmpty());
  for (const char* name : {"c", "a", "b"}) Import(name, 1);
  Import("b", 2);
  v1::ListProfilesRequest request;
  request.set_page_size(2);
  ASSERT_TRUE(Call(&Stub::ListProfiles, request, page).ok());
  ASSERT_THAT(page.profiles(), SizeIs(2));
  EXPECT_EQ(page.profiles(0).name(), "a");
  EXPECT_EQ(page.profiles(1).name(), "b");
  EXPECT_EQ(page.profiles(1).version(), 2);
  EXPECT_GT(page.profiles(1).bytes(), 0);
  request.set_page_token(page.next_page_token());
  ASSERT_TRUE(Call(&Stub::ListProfiles, request, page).ok());
  ASSERT_THAT(page.profiles(), SizeIs(1));
  EXPECT_EQ(page.profiles(0).name(), "c");
  EXPECT_EQ(page.next_page_token(), "");

  request.set_page_token("nonsense");
  grpc::Status status = Call(&Stub::ListProfiles, request, page);
  EXPECT_EQ(FieldOf(status), "page_token");
  request.Clear();
  request.set_page_size(-1);
  status = Call(&Stub::ListProfiles, request, page);
  EXPECT_THAT(status, FailsAt(StatusCode::INVALID_ARGUMENT, "page_size"));
  for (const int size : {0, 1001, std::numeric_limits<int>::max()}) {
    request.set_page_size(size);
    EXPECT_TRUE(Call(&Stub::ListProfiles, request, page).ok()) << size;
    EXPECT_THAT(page.profiles(), SizeIs(3)) << size;
  }
}

TEST_F(ProfileServiceTest, ListsVersionsWithTheirAliases) {
  for (const uint32_t seed : {1u, 2u, 3u}) Import("legal", seed);
  ASSERT_TRUE(SetAlias(AliasRequest("stable", 2)).ok());
  ASSERT_TRUE(SetAlias(AliasRequest("old", 2)).ok());
  v1::ListProfileVersionsRequest request;
  request.set_name("legal");
  v1::ListProfileVersionsResponse list;
  ASSERT_TRUE(Call(&Stub::ListProfileVersions, request, list).ok());
  ASSERT_THAT(list.versions(), SizeIs(3));
  EXPECT_EQ(list.versions(0).version(), 3);
  EXPECT_THAT(list.versions(0).aliases(), IsEmpty());
  EXPECT_THAT(list.versions(1).aliases(), ElementsAre("old", "stable"));
  request.set_name("nothing");
  const grpc::Status status = Call(&Stub::ListProfileVersions, request, list);
  EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(status)->resource_name(), "nothing");
}

TEST_F(ProfileServiceTest, AliasesMoveOnlyFromWhereTheyAreExpected) {
  for (const uint32_t seed : {1u, 2u}) Import("legal", seed);
  ASSERT_TRUE(SetAlias(AliasRequest("stable", 1)).ok());
  EXPECT_EQ(VersionOf("legal@stable"), 1);
  v1::SetProfileAliasRequest request = AliasRequest("stable", 2);
  request.set_expected_version(0);
  EXPECT_EQ(ReasonOf(SetAlias(request)), "VERSION_MISMATCH");
  request.set_expected_version(1);
  EXPECT_TRUE(SetAlias(request).ok());
  EXPECT_EQ(VersionOf("legal@stable"), 2);
  EXPECT_EQ(ReasonOf(SetAlias(AliasRequest("stable", 3))), "PROFILE_NOT_FOUND");
  request = AliasRequest("stable", 0);
  request.clear_version();
  EXPECT_EQ(FieldOf(SetAlias(request)), "version");
  EXPECT_EQ(FieldOf(SetAlias(AliasRequest("3rd", 1))), "alias");
  EXPECT_EQ(FieldOf(SetAlias(AliasRequest("stable", -1))), "version");
  EXPECT_TRUE(SetAlias(AliasRequest("stable", 0)).ok());
  EXPECT_EQ(VersionOf("legal@stable"), 0);
}

TEST_F(ProfileServiceTest, DeletedNamesAreGoneAndTheirVersionsNotUsedAgain) {
  Import("legal", 1);
  Import("legal", 2);
  EXPECT_EQ(ReasonOf(Delete("legal", 1)), "VERSION_MISMATCH");
  EXPECT_TRUE(Delete("legal", 2).ok());
  EXPECT_EQ(VersionOf("legal"), 0);
  EXPECT_EQ(VersionOf("legal@1"), 0);
  EXPECT_EQ(Delete("legal").error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(Import("legal", 3).version(), 3);
}

TEST_F(ProfileServiceTest, AStagedVersionIsUsedByItsNumberUntilItIsPromoted) {
  const auto store = [this](uint32_t seed, bool stage) {
    v1::ImportProfileRequest request;
    request.set_json(
        *ProfileToJson({.name = "legal", .version = 1, .content = FittingContent(seed)}));
    if (stage) request.set_stage(true);
    v1::Profile profile;
    EXPECT_TRUE(Call(&Stub::ImportProfile, request, profile).ok());
    EXPECT_EQ(profile.staged(), stage);
    return profile.version();
  };
  ASSERT_EQ(store(1, false), 1);
  EXPECT_EQ(UsedVersion("legal"), 1);
  ASSERT_EQ(store(2, true), 2);
  EXPECT_EQ(UsedVersion("legal"), 1);
  EXPECT_EQ(UsedVersion("legal@2"), 2);
  v1::ListProfileVersionsRequest request;
  request.set_name("legal");
  v1::ListProfileVersionsResponse list;
  ASSERT_TRUE(Call(&Stub::ListProfileVersions, request, list).ok());
  EXPECT_TRUE(list.versions(0).staged());
  EXPECT_EQ(list.versions(0).model_fingerprint(), engine_->info().model_fingerprint);
  EXPECT_FALSE(list.versions(1).staged());

  v1::PromoteProfileResponse response;
  v1::PromoteProfileRequest promotion = PromotionOf(2);
  promotion.set_expected_version(0);
  EXPECT_EQ(ReasonOf(Call(&Stub::PromoteProfile, promotion, response)), "VERSION_MISMATCH");
  promotion.set_expected_version(1);
  ASSERT_TRUE(Call(&Stub::PromoteProfile, promotion, response).ok());
  EXPECT_EQ(UsedVersion("legal"), 2) << "at once";
  EXPECT_EQ(FieldOf(Call(&Stub::PromoteProfile, PromotionOf(0), response)), "version");
  EXPECT_EQ(FieldOf(Call(&Stub::PromoteProfile, PromotionOf(-1), response)), "version");
  promotion.set_expected_version(-1);
  EXPECT_EQ(FieldOf(Call(&Stub::PromoteProfile, promotion, response)), "expected_version");
  const grpc::Status absent = Call(&Stub::PromoteProfile, PromotionOf(3), response);
  EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(absent)->resource_name(), "legal");
}

TEST_F(ProfileServiceTest, OneVersionIsDeletedUnlessAnAliasNamesIt) {
  for (const uint32_t seed : {1u, 2u}) Import("legal", seed);
  ASSERT_TRUE(SetAlias(AliasRequest("stable", 2)).ok());
  v1::DeleteProfileVersionRequest request;
  request.set_name("legal");
  request.set_version(2);
  v1::DeleteProfileVersionResponse response;
  const grpc::Status named = Call(&Stub::DeleteProfileVersion, request, response);
  EXPECT_THAT(named, FailsWith(StatusCode::FAILED_PRECONDITION, "VERSION_HAS_ALIAS"));
  EXPECT_EQ(MetadataOf(named, "alias"), "stable");
  ASSERT_TRUE(SetAlias(AliasRequest("stable", 1)).ok());
  ASSERT_TRUE(Call(&Stub::DeleteProfileVersion, request, response).ok());
  EXPECT_EQ(VersionOf("legal"), 1);
  EXPECT_EQ(VersionOf("legal@2"), 0);
  EXPECT_EQ(ReasonOf(Call(&Stub::DeleteProfileVersion, request, response)), "PROFILE_NOT_FOUND");
  for (const int64_t bad : {0, -1}) {
    request.set_version(bad);
    EXPECT_EQ(FieldOf(Call(&Stub::DeleteProfileVersion, request, response)), "version");
  }
}

// A replica of the next model stores in the same store what does not fit here.
// bad input: Profiles | calibrated for another model, tokenizer, block size or kind of index |
//   FAILED_PRECONDITION, PROFILE_MISMATCH with both values; as the default profile left out, and
//   said so | ProfileProcessTest.AProfileOfAnotherModelIsRefusedByNameOfWhatDiffers
TEST_F(ProfileServiceTest, AVersionForAnotherModelTakesNoCallFromTheOneInUse) {
  StopServing();
  store_ = std::make_unique<FaultyStore>(ProfileStoreOptions{
      .served_model = [] { return ServedModel{.fingerprint = std::string(64, '0')}; }});
  Serve();
  ASSERT_EQ(engine_->info().model_fingerprint, std::string(64, '0'));
  v1::ImportProfileRequest request;
  request.set_json(*ProfileToJson({.name = "legal", .version = 1, .content = FittingContent(1)}));
  v1::Profile profile;
  ASSERT_TRUE(Call(&Stub::ImportProfile, request, profile).ok());
  for (int round = 0; round < 20; ++round) {
    ASSERT_GT(Import("legal", 1).version(), 1) << "of another model";
    EXPECT_EQ(UsedVersion("legal"), 1);
  }
  Import("foreign", 1);
  v1::GenerateRequest generate = Ask("hello");
  generate.mutable_attention()->set_profile("foreign");
  const grpc::Status unfit = ClientCall(*stub_).Refusal(generate);
  EXPECT_EQ(ReasonOf(unfit), "PROFILE_MISMATCH");
  EXPECT_THAT(unfit.error_message(), ::testing::StartsWith("attention.profile: "));
  EXPECT_EQ(MetadataOf(unfit, "served"), std::string(64, '0'));
}

TEST_F(ProfileServiceTest, ImportChecksItsFileVersionAndRequestId) {
  v1::Profile profile;
  v1::ImportProfileRequest request = ImportRequest("legal", 1);
  request.set_request_id("once");
  request.set_expected_version(0);
  ASSERT_TRUE(Call(&Stub::ImportProfile, request, profile).ok());
  ASSERT_TRUE(Call(&Stub::ImportProfile, request, profile).ok()) << "a repetition";
  EXPECT_EQ(profile.version(), 1);
  request.clear_request_id();
  EXPECT_EQ(ReasonOf(Call(&Stub::ImportProfile, request, profile)), "PROFILE_EXISTS");
  request = ImportRequest("legal", 2);
  request.set_request_id("once");
  EXPECT_EQ(ReasonOf(Call(&Stub::ImportProfile, request, profile)), "REQUEST_ID_REUSED");

  const auto field = [&](const std::string& json) {
    v1::ImportProfileRequest bad;
    bad.set_json(json);
    const grpc::Status status = Call(&Stub::ImportProfile, bad, profile);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
    return FieldOf(status);
  };
  const std::string good = ImportRequest("legal", 1).json();
  EXPECT_THAT(field(""), ::testing::StartsWith("json"));
  EXPECT_THAT(field("{}"), ::testing::StartsWith("json"));
  EXPECT_THAT(field(good.substr(0, good.size() / 2)), ::testing::StartsWith("json"));
  std::string changed = good;
  changed.replace(changed.find("0.35"), 4, "0.36");
  EXPECT_THAT(field(changed), ::testing::StartsWith("json."));
  std::string newer = good;
  newer.replace(newer.find('6', newer.find("schema_version")), 1, "9");
  v1::ImportProfileRequest bad;
  bad.set_json(newer);
  EXPECT_EQ(ReasonOf(Call(&Stub::ImportProfile, bad, profile)), "PROFILE_SCHEMA_MISMATCH");
  bad = ImportRequest("legal", 1);
  bad.set_name("../x");
  EXPECT_EQ(FieldOf(Call(&Stub::ImportProfile, bad, profile)), "name");
}

TEST_F(ProfileServiceTest, BadReferencesAreInvalid) {
  v1::Profile profile;
  v1::ExportProfileResponse file;
  for (const std::string reference : {"", "@1", "a@", "a@0", "a@@1", "../x", "A", "a@-b"}) {
    EXPECT_EQ(FieldOf(Call(&Stub::GetProfile, GetRequest(reference), profile)), "profile");
    v1::ExportProfileRequest request;
    request.set_profile(reference);
    EXPECT_EQ(FieldOf(Call(&Stub::ExportProfile, request, file)), "profile");
  }
  EXPECT_EQ(FieldOf(Delete("a'; DROP TABLE eta_profiles; --")), "name");
}

TEST_F(ProfileServiceTest, TenantsWithEqualNamesDoNotMeet) {
  ServerOptions options;
  options.tenant_header = kTenantHeader;
  Serve(options);
  const v1::Profile acme = Import("legal", 1, "acme");
  Import("legal", 2, "other");
  Import("legal", 3, "other");
  EXPECT_EQ(VersionOf("legal", "acme"), 1);
  EXPECT_EQ(VersionOf("legal", "other"), 2);
  v1::Profile profile;
  ASSERT_TRUE(Call(&Stub::GetProfile, GetRequest("legal"), profile, "acme").ok());
  EXPECT_EQ(profile.checksum(), acme.checksum());
  const grpc::Status foreign = Call(&Stub::GetProfile, GetRequest("legal@2"), profile, "acme");
  const grpc::Status unknown = Call(&Stub::GetProfile, GetRequest("legal@2"), profile, "nobody");
  EXPECT_EQ(foreign.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(foreign.error_message(), unknown.error_message());
  EXPECT_EQ(foreign.error_details(), unknown.error_details());
  v1::ListProfilesResponse list;
  ASSERT_TRUE(Call(&Stub::ListProfiles, v1::ListProfilesRequest(), list, "nobody").ok());
  EXPECT_THAT(list.profiles(), IsEmpty());
  grpc::ClientContext nameless;
  EXPECT_EQ(ReasonOf(profile_stub_->GetProfile(&nameless, GetRequest("legal"), &profile)),
            "TENANT_REQUIRED");
}

// SqliteTenancy checks that the store does the same work for both.
// bad input: Profiles | of another tenant | NOT_FOUND in the same words, details and steps of the
//   store | AccessProcessTest.AForeignProfileIsAnAbsentOne
TEST_F(ProfileServiceTest, AForeignNameIsAnAbsentOneInWordsAndInWork) {
  ServerOptions options;
  options.tenant_header = kTenantHeader;
  Serve(options);
  Import("legal", 1, "acme");
  Import("legal", 2, "acme");
  // What "other" is told, without the name, and how often the store was asked for it.
  const auto told = [&](const std::string& name, auto method, auto request, auto response) {
    const int calls = store_->calls("other");
    const grpc::Status status = Call(method, request, response, "other");
    EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND) << name;
    std::string text = status.error_message() + status.error_details();
    for (size_t at; (at = text.find(name)) != std::string::npos;) text.replace(at, 5, "*");
    return text + std::to_string(store_->calls("other") - calls);
  };
  const auto all = [&](const std::string& name) {
    v1::ListProfileVersionsRequest list;
    list.set_name(name);
    v1::DeleteProfileRequest removal;
    removal.set_name(name);
    v1::SetProfileAliasRequest alias = AliasRequest("stable", 1);
    alias.set_name(name);
    v1::PromoteProfileRequest promotion = PromotionOf(1);
    promotion.set_name(name);
    v1::DeleteProfileVersionRequest version;
    version.set_name(name);
    version.set_version(1);
    v1::ExportProfileRequest file;
    file.set_profile(name + "@2");
    std::vector<std::string> texts = {
        told(name, &Stub::GetProfile, GetRequest(name), v1::Profile()),
        told(name, &Stub::GetProfile, GetRequest(name + "@1"), v1::Profile()),
        told(name, &Stub::GetProfile, GetRequest(name + "@stable"), v1::Profile()),
        told(name, &Stub::ListProfileVersions, list, v1::ListProfileVersionsResponse()),
        told(name, &Stub::ExportProfile, file, v1::ExportProfileResponse()),
        told(name, &Stub::SetProfileAlias, alias, v1::SetProfileAliasResponse()),
        told(name, &Stub::PromoteProfile, promotion, v1::PromoteProfileResponse()),
        told(name, &Stub::DeleteProfileVersion, version, v1::DeleteProfileVersionResponse()),
        told(name, &Stub::DeleteProfile, removal, v1::DeleteProfileResponse())};
    v1::GenerateRequest generate = Ask("hello");
    generate.mutable_attention()->set_profile(name);
    for (int round = 0; round < 2; ++round) {  // first not in the cache, then perhaps
      const int calls = store_->calls("other");
      ClientCall client(*stub_);
      client.context.AddMetadata(kTenantHeader, "other");
      EXPECT_EQ(ReasonOf(client.Refusal(generate)), "PROFILE_NOT_FOUND");
      texts.push_back(std::to_string(store_->calls("other") - calls));
    }
    return texts;
  };
  EXPECT_EQ(all("legal"), all("empty"));
  EXPECT_EQ(VersionOf("legal", "acme"), 2);
}

TEST_F(ProfileServiceTest, TroubleOfTheStoreIsPassedOnAndHealthStays) {
  store_->Fail(MakeError(absl::StatusCode::kDataLoss, "the profile store has a damaged file",
                         {.reason = "STORE_CORRUPT"}));
  v1::Profile profile;
  const grpc::Status status = Call(&Stub::GetProfile, GetRequest("legal"), profile);
  EXPECT_THAT(status, FailsWith(StatusCode::DATA_LOSS, "STORE_CORRUPT"));
  GenericCall health(channel_, "/grpc.health.v1.Health/Check");
  health.Start();
  ASSERT_TRUE(health.Send(""));
  health.SendsDone();
  EXPECT_EQ(health.Read(), "\x08\x01") << "SERVING";
  health.Read();
  health.Finish();
  ExpectGoodCall();
}

TEST_F(ProfileServiceTest, BytesThatAreNoRequestAreInvalid) {
  for (const std::string method :
       {"GetProfile", "ListProfiles", "ListProfileVersions", "SetProfileAlias", "PromoteProfile",
        "DeleteProfileVersion", "DeleteProfile", "ImportProfile", "ExportProfile"}) {
    const grpc::Status status =
        GenericCall(channel_, "/eta.v1.ProfileService/" + method).Exchange("\xff\xff\xff\xff");
    EXPECT_THAT(status, FailsWith(StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE")) << method;
  }
}

TEST_F(ProfileServiceTest, AServerWithoutAStoreSaysSo) {
  const auto store = std::move(store_);
  Serve();
  v1::Profile profile;
  const grpc::Status status = Call(&Stub::GetProfile, GetRequest("legal"), profile);
  EXPECT_THAT(status, FailsWith(StatusCode::FAILED_PRECONDITION, "STORE_NOT_CONFIGURED"));
  StopServing();
  store_ = std::make_unique<FaultyStore>();
  Serve();
}

}  // namespace
}  // namespace eta::testing
