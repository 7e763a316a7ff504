// Who may call what, over real sockets: keys, tokens, certificates, and everything that must be
// refused.
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "calibration/profiles/profile_json.h"
#include "engine/base/error.h"
#include "eta/v1/admin.grpc.pb.h"
#include "gmock/gmock.h"
#include "service/log/grpc_log.h"
#include "tests/testing/net/health_call.h"
#include "tests/testing/service/identity_fixture.h"

namespace eta::testing {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::system_clock;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kKeyName = "k1";

// The roles that each method needs. A method that is missing here fails the test, so whoever adds
// one says who may call it.
const std::map<std::string, Roles> kNeeded = {
    {"/eta.v1.EtaService/Generate", {Role::kGenerate}},
    {"/eta.v1.EtaService/Tokenize", {Role::kGenerate}},
    {"/eta.v1.EtaService/Detokenize", {Role::kGenerate}},
    {"/eta.v1.EtaService/Calibrate", {Role::kCalibrate}},
    {"/eta.v1.EtaService/CancelCalibration", {Role::kCalibrate}},
    {"/eta.v1.ProfileService/GetProfile", {Role::kGenerate, Role::kCalibrate}},
    {"/eta.v1.ProfileService/ListProfiles", {Role::kGenerate, Role::kCalibrate}},
    {"/eta.v1.ProfileService/ListProfileVersions", {Role::kGenerate, Role::kCalibrate}},
    {"/eta.v1.ProfileService/ExportProfile", {Role::kGenerate, Role::kCalibrate}},
    {"/eta.v1.ProfileService/SetProfileAlias", {Role::kCalibrate}},
    {"/eta.v1.ProfileService/PromoteProfile", {Role::kCalibrate}},
    {"/eta.v1.ProfileService/DeleteProfileVersion", {Role::kCalibrate}},
    {"/eta.v1.ProfileService/DeleteProfile", {Role::kCalibrate}},
    {"/eta.v1.ProfileService/ImportProfile", {Role::kCalibrate}},
    {"/eta.v1.EtaService/Stats", {Role::kStats, Role::kStatsAll}},
    {"/eta.v1.EtaService/WatchStats", {Role::kStats, Role::kStatsAll}},
    {"/eta.v1.AdminService/SetLogLevel", {Role::kAdmin}},
};

// Every method of every service in this repository, read from the files: descriptors of services
// that a test does not use are not linked into it.
std::set<std::string> Methods() {
  const std::regex word(R"(\b(service|rpc)\s+(\w+))");
  std::set<std::string> methods;
  const std::filesystem::path folder = std::string(ETA_SOURCE_DIR) + "/proto/eta/v1";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::istringstream lines(ReadFile(entry.path()));
    std::string service;
    for (std::string line; std::getline(lines, line);) {
      line = line.substr(0, line.find("//"));
      for (std::sregex_iterator i(line.begin(), line.end(), word), end; i != end; ++i) {
        if ((*i)[1] == "service") {
          service = (*i)[2];
        } else {
          methods.insert("/eta.v1." + service + "/" + std::string((*i)[2]));
        }
      }
    }
  }
  return methods;
}

// bad input: Callers | a method that the roles do not cover | PERMISSION_DENIED, ROLE_REQUIRED; of
//   the operator's ADMIN_REQUIRED | AccessProcessTest.AMethodThatTheRolesDoNotCoverIsDenied
TEST_F(IdentityTest, EveryMethodAsksForACredentialAndARole) {
  Serve(Options());
  std::set<std::string> listed;
  for (const auto& [method, roles] : kNeeded) listed.insert(method);
  ASSERT_EQ(Methods(), listed);
  for (const auto& [method, needed] : kNeeded) {
    ExpectUnknown(Ask(method, {}), method);
    for (const auto& [role, name] : kRoleNames) {
      const grpc::Status status = Ask(method, By(role));
      const bool may = needed.Has(role);
      EXPECT_EQ(LetIn(status), may) << method << " " << name << ": " << status.error_message();
      if (may) continue;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << method << " " << name;
      EXPECT_EQ(ReasonOf(status),
                needed == Roles{Role::kAdmin} ? "ADMIN_REQUIRED" : "ROLE_REQUIRED");
    }
  }
}

TEST_F(IdentityTest, HealthAsAWholeIsPublicAndNothingElseIs) {
  Serve(Options());
  for (const char* const open : {"", "readiness", "liveness"}) {
    EXPECT_EQ(CheckHealth(channel_, open), HealthStatus::SERVING) << open;
  }
  for (const char* const service :
       {"eta.v1.EtaService", "eta.v1.ProfileService", "eta.v1.AdminService"}) {
    EXPECT_EQ(CheckHealth(channel_, service), std::nullopt) << service;
  }
  const grpc::Status reflection =
      Ask("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {});
  EXPECT_EQ(reflection.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  ServerOptions both = Options();
  both.reflection = true;
  EXPECT_THAT(std::string(Server::Check(both, Limits()).message()), HasSubstr("--reflection"));
}

// bad input: Callers | credential missing, malformed, expired, wrongly signed, of algorithm "none",
//   twice | UNAUTHENTICATED, CREDENTIAL_INVALID with one fixed text whatever was wrong |
//   AccessProcessTest.WhateverIsWrongWithACredentialTheAnswerIsTheSame
TEST_F(IdentityTest, BadCredentialsGetOneAnswer) {
  Serve(Options());
  const std::string method = "/eta.v1.EtaService/Generate";
  const std::string good = "Bearer " + keys_.at(Role::kGenerate);
  ASSERT_TRUE(LetIn(Ask(method, {{"authorization", good}})));
  const int64_t now = system_clock::to_time_t(system_clock::now());
  const json claims = {{"iss", kIssuer}, {"aud", "eta"}, {"exp", now + 600}, {"tenant", "acme"}};
  ASSERT_TRUE(
      LetIn(Ask(method, {{"authorization", "Bearer " + MakeToken(signer_, kKeyName, claims)}})));
  json expired = claims;
  expired["exp"] = now - 600;
  json none = {{"alg", "none"}, {"kid", "k1"}};
  const std::string unsigned_token = Base64Url(none.dump()) + "." + Base64Url(claims.dump()) + ".";
  ExpectUnknown(Ask(method, {{"authorization", good}, {"authorization", good}}), "two");
  for (const std::string& bad :
       {std::string("Bearer"), std::string("Basic abc"), good + "x", "Bearer " + *MakeApiKey("k"),
        "Bearer " + *MakeApiKey(KeyOfRole(Role::kGenerate)),
        "Bearer " + MakeToken(signer_, kKeyName, expired), "Bearer " + unsigned_token,
        "Bearer " + MakeToken(SigningKey(TokenAlgorithm::kES256), kKeyName, claims)}) {
    ExpectUnknown(Ask(method, {{"authorization", bad}}), bad);
  }
  ASSERT_TRUE(LetIn(Ask(method, {{"authorization", good}}))) << "a good call after all that";
}

TEST_F(IdentityTest, StatsOfOthersAreForThoseWhoMaySeeAll) {
  Serve(Options());
  const auto stub = v1::EtaService::NewStub(channel_);
  const auto ask = [&](Role role, const std::string& tenant) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + keys_.at(role));
    v1::StatsRequest request;
    request.set_tenant(tenant);
    v1::Stats stats;
    return stub->Stats(&context, request, &stats);
  };
  EXPECT_TRUE(ask(Role::kStats, "acme").ok());
  EXPECT_EQ(ReasonOf(ask(Role::kStats, "other")), "ADMIN_REQUIRED");
  EXPECT_TRUE(ask(Role::kStatsAll, "other").ok());
}

TEST_F(IdentityTest, DenialsAndChangesLeaveATrailWithoutSecrets) {
  Serve(Options());
  const std::string secret = keys_.at(Role::kStats);
  Ask("/eta.v1.EtaService/Generate", {});
  Ask("/eta.v1.EtaService/Generate", {{"authorization", "Bearer " + secret}});
  Ask("/eta.v1.EtaService/Generate", {{"authorization", "Bearer " + secret + "x"}});
  Ask("/eta.v1.ProfileService/DeleteProfile", By(Role::kCalibrate));
  StopServing();
  const std::string text = LogText();
  std::vector<json> denied, changes;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const json line = json::parse(text.substr(begin, end - begin));
    if (line["event"] == "denied") denied.push_back(line);
    if (line["event"] == "profile_change") changes.push_back(line);
  }
  ASSERT_EQ(denied.size(), 3u) << text;
  EXPECT_EQ(denied[0]["why"], "nothing shown");
  EXPECT_EQ(denied[0]["code"], "UNAUTHENTICATED");
  EXPECT_EQ(denied[1]["code"], "PERMISSION_DENIED");
  EXPECT_EQ(denied[1]["credential"], "api_key:" + KeyOfRole(Role::kStats));
  EXPECT_EQ(denied[1]["tenant"], "acme");
  EXPECT_EQ(denied[1]["method"], "Generate");
  EXPECT_THAT(std::string(denied[1]["peer"]), HasSubstr("127.0.0.1"));
  EXPECT_FALSE(denied[2].contains("credential"));
  ASSERT_EQ(changes.size(), 1u) << text;
  EXPECT_EQ(changes[0]["method"], "DeleteProfile");
  EXPECT_EQ(changes[0]["code"], "FAILED_PRECONDITION");
  EXPECT_EQ(changes[0]["credential"], "api_key:" + KeyOfRole(Role::kCalibrate));
  for (const auto& [role, key] : keys_) {
    EXPECT_THAT(text, Not(HasSubstr(key.substr(key.size() - 43))))
        << "the secret may hold _ itself";
  }
}

TEST_F(IdentityTest, ChangesAreToldWithWhatTheyWereAboutAlsoThoseThatFail) {
  store_ = std::make_unique<FaultyStore>();
  Serve(Options());
  const std::string credential = "Bearer " + keys_.at(Role::kCalibrate);
  const auto call = [&](auto method, const auto& request, auto response) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", credential);
    return (profile_stub_.get()->*method)(&context, request, &response);
  };
  using Stub = v1::ProfileService::Stub;
  v1::ImportProfileRequest import;
  import.set_json(*ProfileToJson(
      {.name = "legal", .version = 9, .create_time_us = 1, .content = MakeContent(1, 2, 4)}));
  import.set_request_id("r-1");
  v1::SetProfileAliasRequest alias;
  alias.set_name("legal");
  alias.set_alias("stable");
  alias.set_version(1);
  v1::PromoteProfileRequest promote;
  promote.set_name("legal");
  promote.set_version(1);
  v1::DeleteProfileVersionRequest remove_version;
  remove_version.set_name("legal");
  remove_version.set_version(1);
  const auto change = [&] {
    v1::SetProfileAliasRequest unset = alias;
    unset.set_version(0);
    call(&Stub::ImportProfile, import, v1::Profile());
    call(&Stub::SetProfileAlias, alias, v1::SetProfileAliasResponse());
    call(&Stub::SetProfileAlias, unset, v1::SetProfileAliasResponse());
    call(&Stub::PromoteProfile, promote, v1::PromoteProfileResponse());
    call(&Stub::DeleteProfileVersion, remove_version, v1::DeleteProfileVersionResponse());
  };
  const std::vector<std::string> methods = {"ImportProfile", "SetProfileAlias", "SetProfileAlias",
                                            "PromoteProfile", "DeleteProfileVersion"};
  change();
  store_->Fail(MakeError(absl::StatusCode::kUnavailable, "the answer was lost",
                         {.reason = "OUTCOME_UNKNOWN"}));
  change();
  StopServing();
  std::istringstream lines(LogText());
  std::vector<json> changes;
  for (std::string line; std::getline(lines, line);) {
    changes.push_back(json::parse(line));
    EXPECT_EQ(changes.back()["event"], "profile_change") << line;
  }
  ASSERT_EQ(changes.size(), 10u);
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(changes[i].dump());
    const bool failed = i >= 5;
    EXPECT_EQ(changes[i]["method"], methods[i % 5]);
    EXPECT_EQ(changes[i]["code"], failed ? "UNAVAILABLE" : "OK");
    EXPECT_EQ(changes[i].value("reason", ""), failed ? "OUTCOME_UNKNOWN" : "");
    EXPECT_EQ(changes[i]["profile"], "legal");
    EXPECT_EQ(changes[i]["tenant"], "acme");
    EXPECT_EQ(changes[i].value("request_id", ""), i % 5 == 0 ? "r-1" : "");
    EXPECT_EQ(changes[i].value("alias", ""), i % 5 == 1 || i % 5 == 2 ? "stable" : "");
    const int64_t version = i % 5 == 2 ? 0 : i == 5 ? -1 : 1;  // -1: none was made
    EXPECT_EQ(changes[i].value("profile_version", -1), version);
  }
}

// bad input: Callers | a tenant in the request that is not the credential's | PERMISSION_DENIED,
//   TENANT_MISMATCH | AccessProcessTest.ACallMayNotNameAnotherTenantThanItsCredentialIsOf
// bad input: Callers | identity header from a peer that is not the trusted proxy | UNAUTHENTICATED,
//   CREDENTIAL_INVALID; the header is not read | FrontTest.ClientsCannotNameTheirTenant
TEST_F(IdentityTest, PeersAreKnownByTheirCertificates) {
  file_["peers"] = {{{"spiffe_id", kWeb}, {"tenant", "web"}, {"roles", {"generate"}}},
                    {{"spiffe_id", kProxy}, {"proxy", true}, {"roles", {"generate"}}}};
  ServerOptions options = TlsOptions(/*mutual=*/true);
  options.identity = Options().identity;
  options.tenant_header = kTenantHeader;
  const std::string method = "/eta.v1.EtaService/Generate";
  // This host's own sockets are treated like the network, since a front brings strangers there too.
  for (const char* const listen : {"127.0.0.1:0", "0.0.0.0:0"}) {
    SCOPED_TRACE(listen);
    options.listen = listen;
    StopServing();
    engine_ = std::make_unique<PuppetEngine>();
    auto server = Server::Start(options, {.engine = *engine_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const auto web = TlsChannel(authority_, authority_.Issue({.uri = kWeb}));
    const auto proxy = TlsChannel(authority_, authority_.Issue({.uri = kProxy}));
    const auto other = TlsChannel(authority_, authority_.Issue({.uri = "spiffe://example.org/x"}));
    const auto nameless = TlsChannel(authority_, authority_.Issue());
    EXPECT_TRUE(LetIn(Ask(web, method, {})));
    EXPECT_EQ(ReasonOf(Ask(web, "/eta.v1.EtaService/Stats", {})), "ROLE_REQUIRED");
    EXPECT_TRUE(LetIn(Ask(proxy, method, {{kTenantHeader, "acme"}})));
    EXPECT_EQ(ReasonOf(Ask(proxy, method, {})), "TENANT_REQUIRED");
    ExpectUnknown(Ask(other, method, {}), "an id of nobody");
    ExpectUnknown(Ask(nameless, method, {}), "no id");
    ExpectUnknown(Ask(other, method, {{kTenantHeader, "acme"}}), "the header of no proxy");
    EXPECT_TRUE(LetIn(Ask(other, method, By(Role::kGenerate)))) << "but a key is a key";
    EXPECT_EQ(ReasonOf(Ask(web, method, {{kTenantHeader, "web"}})), "CREDENTIAL_INVALID");
    EXPECT_EQ(ReasonOf(Ask(proxy, method,
                           {{kTenantHeader, "other"},
                            {"authorization", "Bearer " + keys_.at(Role::kGenerate)}})),
              "TENANT_MISMATCH");
    // No connection is made without a certificate, with a stranger's certificate, or in plaintext.
    const CertificateAuthority strangers("strangers");
    for (const auto& channel :
         {TlsChannel(authority_), TlsChannel(authority_, strangers.Issue({.uri = kWeb})),
          NewChannel()}) {
      EXPECT_EQ(Ask(channel, method, By(Role::kGenerate)).error_code(),
                grpc::StatusCode::UNAVAILABLE);
    }
    EXPECT_TRUE(LetIn(Ask(web, method, {})));
  }
}

TEST_F(IdentityTest, ARefusedHandshakeLeavesATrail) {
  std::optional<GrpcLog> grpc_log(std::in_place, *own_log_);
  Serve(TlsOptions(/*mutual=*/true));
  const std::string method = "/eta.v1.EtaService/Stats";
  const CertificateAuthority strangers("strangers");
  ASSERT_TRUE(Ask(TlsChannel(authority_, authority_.Issue()), method, {}).ok());
  EXPECT_FALSE(Ask(TlsChannel(authority_, strangers.Issue()), method, {}).ok());
  EXPECT_FALSE(Ask(TlsChannel(authority_), method, {}).ok());
  StopServing();
  grpc_log.reset();
  std::string why;
  std::istringstream lines(LogText());
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line);
    if (event["event"] == "denied") why += std::string(event["why"]) + "\n";
  }
  EXPECT_THAT(why, HasSubstr("certificate verify failed"));
  EXPECT_THAT(why, HasSubstr("peer did not return a certificate"));
}

TEST_F(IdentityTest, ProbesReachAServerWithMutualTls) {
  ServerOptions options = TlsOptions(/*mutual=*/true);
  options.health_listen = "127.0.0.1:0";
  options.self_probe_timeout = milliseconds(1200);
  Serve(options);
  ASSERT_NE(server_->health_listener(), nullptr);
  const auto probe = grpc::CreateChannel(server_->health_listener()->address(),
                                         grpc::InsecureChannelCredentials());
  for (const char* const name : {"", "readiness", "liveness"}) {
    EXPECT_EQ(CheckHealth(probe, name), HealthStatus::SERVING) << name;
  }
  EXPECT_EQ(Ask(probe, "/eta.v1.EtaService/Stats", {}).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  // If the server's own probe were refused, liveness would fail after the probe's timeout.
  std::this_thread::sleep_for(milliseconds(2500));
  EXPECT_EQ(CheckHealth(probe, "liveness"), HealthStatus::SERVING);
  std::thread drain([this] { server_->Drain(); });
  bool told = false;
  for (int i = 0; i < 400 && !told; ++i) {
    told = CheckHealth(probe, "readiness") == HealthStatus::NOT_SERVING;
  }
  EXPECT_TRUE(told);
  drain.join();
}

}  // namespace
}  // namespace eta::testing
