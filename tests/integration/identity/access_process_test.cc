// Who may call the shipped server.
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "grpcpp/security/credentials.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/identity/access_files.h"
#include "tests/testing/identity/certificates.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/service/tenants_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using nlohmann::json;
using std::chrono::system_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using AccessProcessTest = TenantsFixture;

TEST_F(AccessProcessTest, WhateverIsWrongWithACredentialTheAnswerIsTheSame) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const int64_t now = system_clock::to_time_t(system_clock::now());
  const json claims = {{"iss", kIssuer}, {"aud", "eta"}, {"exp", now + 600}};
  EXPECT_TRUE(Generate(By("acme")).ok());
  EXPECT_TRUE(Generate(Bearer(MakeToken(signer_, kKeyName, claims))).ok());

  json expired = claims;
  expired["exp"] = now - 600;
  const auto start_of = [&claims](const char* algorithm) {
    const json header = {{"alg", algorithm}, {"kid", kKeyName}};
    return Base64Url(header.dump()) + "." + Base64Url(claims.dump());
  };
  const std::string by_public_key = start_of("HS256");
  Shown two = By("acme");
  two.merge(By("acme"));
  const std::vector<std::pair<const char*, Shown>> bad = {
      {"none", {}},
      {"two headers", two},
      {"no scheme", {{"authorization", keys_["acme"]}}},
      {"another scheme", {{"authorization", "Basic YWNtZTphY21l"}}},
      {"nothing after the scheme", {{"authorization", "Bearer "}}},
      {"no token", Bearer("a.b")},
      {"a key that nobody has", Bearer(*MakeApiKey("nobody"))},
      {"another secret", Bearer(*MakeApiKey("acme"))},
      {"a key that has expired", By("expired")},
      {"a token that has expired", Bearer(MakeToken(signer_, kKeyName, expired))},
      {"another's signature",
       Bearer(MakeToken(SigningKey(TokenAlgorithm::kES256), kKeyName, claims))},
      {"algorithm none", Bearer(start_of("none") + ".")},
      {"the public key as a shared secret",
       Bearer(by_public_key + "." + Base64Url(HmacSha256(signer_.PublicPem(), by_public_key)))}};
  const grpc::Status usual = Generate({});
  EXPECT_EQ(usual.error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(ReasonOf(usual), "CREDENTIAL_INVALID");
  EXPECT_EQ(usual.error_message(), "the call's credential is missing or not valid");
  for (const auto& [what, shown] : bad) {
    for (const char* method :
         {"/eta.v1.EtaService/Generate", "/eta.v1.EtaService/Calibrate",
          "/eta.v1.ProfileService/ImportProfile", "/eta.v1.EtaService/Stats",
          "/eta.v1.EtaService/WatchStats", "/eta.v1.AdminService/SetLogLevel"}) {
      const grpc::Status status = Knock(method, shown);
      EXPECT_EQ(status.error_code(), usual.error_code()) << what << ", " << method;
      EXPECT_EQ(status.error_message(), usual.error_message()) << what << ", " << method;
      EXPECT_EQ(status.error_details(), usual.error_details()) << what << ", " << method;
    }
  }
}

TEST_F(AccessProcessTest, AMethodThatTheRolesDoNotCoverIsDenied) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<std::pair<const char*, const char*>> denied = {
      {"reader", "/eta.v1.EtaService/Calibrate"},
      {"reader", "/eta.v1.EtaService/CancelCalibration"},
      {"reader", "/eta.v1.ProfileService/ImportProfile"},
      {"reader", "/eta.v1.ProfileService/SetProfileAlias"},
      {"reader", "/eta.v1.ProfileService/DeleteProfile"},
      {"reader", "/eta.v1.EtaService/Stats"},
      {"reader", "/eta.v1.EtaService/WatchStats"},
      {"ops", "/eta.v1.EtaService/Generate"},
      {"ops", "/eta.v1.ProfileService/GetProfile"},
      {"ops", "/eta.v1.ProfileService/ExportProfile"}};
  for (const auto& [id, method] : denied) {
    const grpc::Status status = Knock(method, By(id));
    EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED) << method;
    EXPECT_EQ(ReasonOf(status), "ROLE_REQUIRED") << method;
  }
  const grpc::Status status = Knock("/eta.v1.AdminService/SetLogLevel", By("ops"));
  EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ReasonOf(status), "ADMIN_REQUIRED");
  EXPECT_TRUE(Generate(By("reader")).ok());
  EXPECT_TRUE(Import("acme", "legal").ok());
}

// Through a proxy, since only a proxy may name a tenant.
TEST_F(AccessProcessTest, ACallMayNotNameAnotherTenantThanItsCredentialIsOf) {
  const CertificateAuthority authority("authority");
  const MadeCertificate own = authority.Issue();
  const MadeCertificate proxy = authority.Issue({.uri = "spiffe://example.org/front"});
  const MadeCertificate other = authority.Issue({.uri = "spiffe://example.org/other"});
  const std::string key = WriteSecret(folder_, "own.key", own.key);
  identity_["peers"] = {
      {{"spiffe_id", "spiffe://example.org/front"}, {"proxy", true}, {"roles", {"generate"}}}};
  ASSERT_NO_FATAL_FAILURE(Start(
      "{}",
      {"--tenant_header", kTenantHeader, "--tls_cert", folder_.Write("own.pem", own.certificate),
       "--tls_key", key, "--tls_client_ca", folder_.Write("ca.pem", authority.pem())}));
  const auto connect_as = [&](const MadeCertificate& peer) {
    server_->stub = v1::EtaService::NewStub(OwnConnection(
        server_->address(), grpc::SslCredentials({.pem_root_certs = authority.pem(),
                                                  .pem_private_key = peer.key,
                                                  .pem_cert_chain = peer.certificate})));
  };
  const auto naming = [this](const std::string& tenant) {
    Shown shown = By("acme");
    shown.emplace(kTenantHeader, tenant);
    return Generate(shown);
  };
  connect_as(proxy);
  grpc::Status status = naming("globex");
  EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ReasonOf(status), "TENANT_MISMATCH");

  connect_as(other);
  EXPECT_TRUE(Generate(By("acme")).ok());
  status = naming("acme");
  EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << "whatever else it shows";
  EXPECT_EQ(ReasonOf(status), "CREDENTIAL_INVALID");
  status = Generate({{kTenantHeader, "acme"}});
  EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(ReasonOf(status), "CREDENTIAL_INVALID");

  connect_as(proxy);
  EXPECT_TRUE(naming("acme").ok());
}

TEST_F(AccessProcessTest, FiguresOfOthersAreForThoseWhoMaySeeAll) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Generate(By("acme")).ok());
  ASSERT_TRUE(Generate(By("globex")).ok());
  v1::Stats stats;
  grpc::Status status = AskStats("acme", "globex", stats);
  EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ReasonOf(status), "ADMIN_REQUIRED");
  v1::WatchStatsRequest watch;
  watch.set_tenant("globex");
  GenericCall watching(channel_, "/eta.v1.EtaService/WatchStats");
  Show(By("acme"), watching.context());
  status = Note(watching.Exchange(watch.SerializeAsString()), watching.context());
  EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ReasonOf(status), "ADMIN_REQUIRED");
  status = AskStats("reader", "", stats);
  EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ReasonOf(status), "ROLE_REQUIRED");

  ASSERT_TRUE(AskStats("acme", "", stats).ok());
  EXPECT_FALSE(stats.has_load()) << "the fleet's";
  EXPECT_EQ(stats.tenant(), "acme");
  EXPECT_THAT(stats.DebugString(), Not(HasSubstr("globex")));
  ASSERT_TRUE(AskStats("ops", "", stats).ok());
  EXPECT_TRUE(stats.has_load());
  EXPECT_THAT(stats.DebugString(), AllOf(HasSubstr("acme"), HasSubstr("globex")));
  ASSERT_TRUE(AskStats("ops", "globex", stats).ok());
  EXPECT_EQ(stats.tenant(), "globex");
}

TEST_F(AccessProcessTest, AForeignProfileIsAnAbsentOne) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Import("acme", "legal").ok());
  // What globex is told of a profile, without the name.
  const auto told = [this](const std::string& name) {
    using Stub = v1::ProfileService::Stub;
    v1::GetProfileRequest get;
    get.set_profile(name);
    v1::GetProfileRequest version;
    version.set_profile(name + "@1");
    v1::ExportProfileRequest file;
    file.set_profile(name);
    v1::ListProfileVersionsRequest list;
    list.set_name(name);
    v1::SetProfileAliasRequest alias;
    alias.set_name(name);
    alias.set_alias("stable");
    alias.set_version(1);
    v1::PromoteProfileRequest promotion;
    promotion.set_name(name);
    promotion.set_version(1);
    v1::DeleteProfileVersionRequest one;
    one.set_name(name);
    one.set_version(1);
    v1::DeleteProfileRequest removal;
    removal.set_name(name);
    v1::GenerateRequest generate = AskFor(4);
    generate.mutable_attention()->set_profile(name);
    auto& profiles = *server_->profiles;
    const Shown globex = By("globex");
    std::vector<std::string> texts;
    for (const grpc::Status& status :
         {Call(profiles, &Stub::GetProfile, get, globex),
          Call(profiles, &Stub::GetProfile, version, globex),
          Call(profiles, &Stub::ExportProfile, file, globex),
          Call(profiles, &Stub::ListProfileVersions, list, globex),
          Call(profiles, &Stub::SetProfileAlias, alias, globex),
          Call(profiles, &Stub::PromoteProfile, promotion, globex),
          Call(profiles, &Stub::DeleteProfileVersion, one, globex),
          Call(profiles, &Stub::DeleteProfile, removal, globex), Generate(globex, generate)}) {
      EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND) << status.error_message();
      EXPECT_EQ(ReasonOf(status), "PROFILE_NOT_FOUND");
      texts.push_back(
          absl::StrReplaceAll(status.error_message() + status.error_details(), {{name, "*"}}));
    }
    return texts;
  };
  EXPECT_EQ(told("legal"), told("empty"));
  v1::GetProfileRequest own;
  own.set_profile("legal@1");
  EXPECT_TRUE(
      Call(*server_->profiles, &v1::ProfileService::Stub::GetProfile, own, By("acme")).ok());
}

// How much each gets: tests of limits have the other reasons.
TEST_F(AccessProcessTest, OverItsCallsAtATimeATenantWaitsForOneToEnd) {
  ASSERT_NO_FATAL_FAILURE(Start(R"({"tenants": {"acme": {"max_calls": 1}}})"));
  const auto running = Begin(By("acme"), AskFor(12'000));
  EXPECT_TRUE(running->Read().has_started());
  const auto expect_refused = [this](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_EQ(ReasonOf(status), "TENANT_CALLS");
    const auto quota = DetailOf<google::rpc::QuotaFailure>(status);
    ASSERT_TRUE(quota.has_value());
    EXPECT_EQ(quota->violations(0).subject(), "tenant");
    EXPECT_THAT(quota->violations(0).description(), HasSubstr("max_calls: "));
    EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(status).has_value());
    EXPECT_GT(std::stoi("0" + pushback_), 0) << "of this call";
  };
  expect_refused(Generate(By("acme")));
  expect_refused(Import("acme", "legal"));
  EXPECT_TRUE(Generate(By("globex")).ok());
  running->context.TryCancel();
  running->Finish();
  // Its place is free a moment after its client has gone.
  grpc::Status again;
  for (int i = 0; i < 300 && !(again = Generate(By("acme"))).ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(again.ok()) << again.error_message();
}

}  // namespace
}  // namespace eta::testing
