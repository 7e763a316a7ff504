// A server around a store that a test makes fail or wait, and the calls about stored profiles.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "calibration/profiles/profile_json.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/identity/tenant_header.h"
#include "tests/testing/service/service_fixture.h"

namespace eta::testing {

class ProfileServiceTest : public ServiceTest {
 protected:
  void SetUp() override {
    store_ = std::make_unique<FaultyStore>();
    Serve();
  }
  void TearDown() override {
    store_->Fail(absl::OkStatus());
    v1::Profile profile;
    EXPECT_TRUE(Call(&Stub::GetProfile, GetRequest("good"), profile).ok() ||
                Call(&Stub::ImportProfile, ImportRequest("good", 1), profile).ok());
    StopServing();
  }

  using Stub = v1::ProfileService::Stub;
  template <typename Request, typename Response>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

  template <typename Request, typename Response>
  grpc::Status Call(Method<Request, Response> method, const Request& request, Response& response,
                    const std::string& tenant = "anybody") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    context.AddMetadata(kTenantHeader, tenant);
    return (profile_stub_.get()->*method)(&context, request, &response);
  }

  static v1::GetProfileRequest GetRequest(const std::string& reference) {
    v1::GetProfileRequest request;
    request.set_profile(reference);
    return request;
  }
  static v1::ImportProfileRequest ImportRequest(const std::string& name, uint32_t seed) {
    const auto json = ProfileToJson(
        {.name = name, .version = 9, .create_time_us = 1, .content = MakeContent(seed, 2, 4)});
    v1::ImportProfileRequest request;
    request.set_json(*json);
    return request;
  }
  static v1::SetProfileAliasRequest AliasRequest(const std::string& alias, int64_t version) {
    v1::SetProfileAliasRequest request;
    request.set_name("legal");
    request.set_alias(alias);
    request.set_version(version);
    return request;
  }
  static v1::PromoteProfileRequest PromotionOf(int64_t version) {
    v1::PromoteProfileRequest request;
    request.set_name("legal");
    request.set_version(version);
    return request;
  }
  // The version that a Generate call gets; 0 if it is refused.
  int64_t UsedVersion(const std::string& profile) {
    v1::GenerateRequest request = Ask("hello");
    request.mutable_attention()->set_profile(profile);
    ClientCall client(*stub_);
    client.Start(request);
    const auto call = engine_->TakeCall();
    if (call == nullptr) {
      ADD_FAILURE() << client.Finish().error_message();
      return 0;
    }
    const int64_t version = call->request().attention.profile->version;
    call->Start();
    call->Finish();
    client.ReadText();
    EXPECT_TRUE(client.Finish().ok());
    return version;
  }
  v1::Profile Import(const std::string& name, uint32_t seed,
                     const std::string& tenant = "anybody") {
    v1::Profile profile;
    const grpc::Status status =
        Call(&Stub::ImportProfile, ImportRequest(name, seed), profile, tenant);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return profile;
  }
  grpc::Status SetAlias(const v1::SetProfileAliasRequest& request) {
    v1::SetProfileAliasResponse response;
    return Call(&Stub::SetProfileAlias, request, response);
  }
  grpc::Status Delete(const std::string& name, std::optional<int64_t> expected = std::nullopt) {
    v1::DeleteProfileRequest request;
    request.set_name(name);
    if (expected) request.set_expected_version(*expected);
    v1::DeleteProfileResponse response;
    return Call(&Stub::DeleteProfile, request, response);
  }
  // The version that a reference means; 0 if there is none.
  int64_t VersionOf(const std::string& reference, const std::string& tenant = "anybody") {
    v1::Profile profile;
    const grpc::Status status = Call(&Stub::GetProfile, GetRequest(reference), profile, tenant);
    EXPECT_EQ(ReasonOf(status), status.ok() ? "" : "PROFILE_NOT_FOUND") << reference;
    return profile.version();
  }
};

}  // namespace eta::testing
