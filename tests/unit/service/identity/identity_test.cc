// Who may call: keys, the file that names them, and what a call shows of its sender.
#include "service/identity/identity.h"

#include <functional>
#include <set>
#include <string>

#include "absl/strings/escaping.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "service/identity/api_key.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/identity/token_maker.h"

namespace eta::testing {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using std::chrono::system_clock;
using ::testing::HasSubstr;

constexpr char kProxy[] = "spiffe://example.org/edge/envoy";
constexpr char kWeb[] = "spiffe://example.org/web";

std::string Hash(const std::string& key) {
  return absl::BytesToHexString(ApiKeyDigest(key));
}

json KeyEntry(const std::string& id, const std::string& key, const std::string& tenant = "acme") {
  return {{"id", id}, {"tenant", tenant}, {"roles", {"generate"}}, {"sha256", Hash(key)}};
}

std::string ErrorOf(const json& file) {
  return std::string(ParseIdentityFile(file.dump()).status().message());
}

TEST(ApiKey, IsDrawnAndReadBack) {
  std::set<std::string> drawn;
  for (int i = 0; i < 100; ++i) {
    const auto key = MakeApiKey("acme-1").value();
    const auto read = ParseApiKey(key);
    ASSERT_TRUE(read.has_value()) << key;
    EXPECT_EQ(read->id, "acme-1");
    drawn.insert(key);
  }
  EXPECT_EQ(drawn.size(), 100u);
  EXPECT_FALSE(MakeApiKey("Acme").ok());
  EXPECT_FALSE(MakeApiKey("").ok());
  EXPECT_FALSE(MakeApiKey("a_b").ok());
  EXPECT_FALSE(MakeApiKey(std::string(65, 'a')).ok());
}

TEST(ApiKey, HasOneFormOnly) {
  const std::string good = *MakeApiKey("a");
  for (const std::string& bad :
       {std::string(), std::string("eta_"), std::string("eta__"), good + "A",
        good.substr(0, good.size() - 1), "x" + good, std::string("eta_a_secret"),
        std::string("eta__") + good.substr(6), "eta_A" + good.substr(5), good + std::string(1, 0),
        good.substr(0, good.size() - 1) + "=", good.substr(0, good.size() - 1) + " "}) {
    EXPECT_FALSE(ParseApiKey(bad).has_value()) << bad;
  }
}

TEST(IdentityFile, IsReadWhole) {
  const SigningKey key(TokenAlgorithm::kES256);
  const json file = {{"api_keys",
                      {{{"id", "acme-1"},
                        {"tenant", "acme"},
                        {"roles", {"generate", "stats"}},
                        {"sha256", std::string(64, 'A')},
                        {"expires", "2027-01-31T00:00:00Z"}},
                       KeyEntry("acme-2", "x")}},
                     {"jwt",
                      {{{"issuer", "https://login.example.org"},
                        {"audiences", {"eta"}},
                        {"keys",
                         {{{"kid", "k1"}, {"algorithm", "ES256"}, {"jwk", key.Jwk()}},
                          {{"kid", "k2"},
                           {"algorithm", "EdDSA"},
                           {"pem", SigningKey(TokenAlgorithm::kEdDSA).PublicPem()}}}},
                        {"tenant_claim", "tenant"},
                        {"roles_claim", "roles"},
                        {"roles", {"generate"}},
                        {"leeway_seconds", 5}}}},
                     {"peers",
                      {{{"spiffe_id", kWeb}, {"tenant", "acme"}, {"roles", {"calibrate"}}},
                       {{"spiffe_id", kProxy}, {"proxy", true}, {"roles", {"generate"}}}}}};
  const auto read = ParseIdentityFile(file.dump()).value();
  ASSERT_EQ(read.api_keys.size(), 2u) << "two keys of one tenant, both valid";
  const ApiKey& first = read.api_keys.at("acme-1");
  EXPECT_EQ(first.tenant.id(), "acme");
  EXPECT_EQ(first.roles, (Roles{Role::kGenerate, Role::kStats}));
  EXPECT_EQ(system_clock::to_time_t(*first.expires), 1'801'353'600);
  EXPECT_FALSE(read.api_keys.at("acme-2").expires.has_value());
  const TokenIssuer& issuer = read.issuers.at("https://login.example.org");
  EXPECT_EQ(issuer.keys.size(), 2u);
  EXPECT_EQ(issuer.leeway, seconds(5));
  EXPECT_EQ(read.peers.at(kWeb).tenant->id(), "acme");
  EXPECT_FALSE(read.peers.at(kProxy).tenant.has_value());
  EXPECT_TRUE(read.HasProxies());
}

TEST(IdentityFile, EverythingElseIsRefusedByName) {
  const auto with_key = [](const char* field, const json& value) {
    json key = KeyEntry("a", "x");
    if (value.is_discarded()) {
      key.erase(field);
    } else {
      key[field] = value;
    }
    return json{{"api_keys", {key}}};
  };
  const json gone(json::value_t::discarded);
  EXPECT_THAT(ErrorOf(with_key("id", "A")), HasSubstr("api_keys[0].id"));
  EXPECT_THAT(ErrorOf(with_key("tenant", "two words")), HasSubstr("api_keys[0].tenant"));
  EXPECT_THAT(ErrorOf(with_key("roles", json::array())), HasSubstr("api_keys[0].roles"));
  EXPECT_THAT(ErrorOf(with_key("roles", {"root"})), HasSubstr("api_keys[0].roles"));
  EXPECT_THAT(ErrorOf(with_key("roles", {"stats", "stats"})), HasSubstr("api_keys[0].roles"));
  EXPECT_THAT(ErrorOf(with_key("sha256", "abc")), HasSubstr("api_keys[0].sha256"));
  EXPECT_THAT(ErrorOf(with_key("sha256", std::string(64, 'g'))), HasSubstr("sha256"));
  EXPECT_THAT(ErrorOf(with_key("expires", "tomorrow")), HasSubstr("api_keys[0].expires"));
  EXPECT_THAT(ErrorOf(with_key("key", "eta_a_secret")), HasSubstr("unknown"));
  for (const char* const field : {"id", "tenant", "roles", "sha256"}) {
    EXPECT_THAT(ErrorOf(with_key(field, gone)), HasSubstr(field));
  }
  EXPECT_THAT(ErrorOf({{"api_keys", {KeyEntry("a", "x"), KeyEntry("a", "y")}}}),
              HasSubstr("twice"));
  EXPECT_THAT(ErrorOf({{"api_keys", {KeyEntry("a", "x"), KeyEntry("b", "x")}}}),
              HasSubstr("another key's"));
  EXPECT_THAT(ErrorOf({{"api_keys", {1}}}), HasSubstr("api_keys[0]"));
  EXPECT_THAT(ErrorOf({{"api_keys", json::object()}}), HasSubstr("api_keys"));
  EXPECT_THAT(ErrorOf({{"keys", json::array()}}), HasSubstr("unknown"));
  EXPECT_THAT(ErrorOf(json::object()), HasSubstr("nobody"));
  EXPECT_FALSE(ParseIdentityFile("").ok());
  EXPECT_FALSE(ParseIdentityFile("[]").ok());
  EXPECT_FALSE(ParseIdentityFile(R"({"api_keys":[],"api_keys":[]})").ok());
  EXPECT_FALSE(ParseIdentityFile(std::string(100'000, '[')).ok());
}

TEST(IdentityFile, IssuersAndPeersAreCheckedToo) {
  const SigningKey key(TokenAlgorithm::kEdDSA);
  const json good = {{"issuer", "i"},
                     {"audiences", {"eta"}},
                     {"tenant", "acme"},
                     {"roles", {"generate"}},
                     {"keys", {{{"kid", "k"}, {"algorithm", "EdDSA"}, {"jwk", key.Jwk()}}}}};
  const auto error = [&good](const std::function<void(json&)>& change) {
    json issuer = good;
    change(issuer);
    return ErrorOf({{"jwt", {issuer}}});
  };
  EXPECT_EQ(error([](json&) {}), "");
  EXPECT_THAT(error([](json& j) { j["keys"][0]["algorithm"] = "none"; }), HasSubstr("algorithm"));
  EXPECT_THAT(error([](json& j) { j["keys"][0]["algorithm"] = "HS256"; }), HasSubstr("algorithm"));
  EXPECT_THAT(error([](json& j) { j["keys"][0]["algorithm"] = "ES256"; }), HasSubstr("jwk"));
  EXPECT_THAT(error([](json& j) { j["keys"][0].erase("jwk"); }), HasSubstr("pem"));
  EXPECT_THAT(error([](json& j) { j["keys"][0]["pem"] = "x"; }), HasSubstr("pem"));
  EXPECT_THAT(error([](json& j) { j["keys"].push_back(j["keys"][0]); }), HasSubstr("kid"));
  EXPECT_THAT(error([](json& j) { j["keys"] = json::array(); }), HasSubstr("keys"));
  EXPECT_THAT(error([](json& j) { j["audiences"] = json::array(); }), HasSubstr("audiences"));
  EXPECT_THAT(error([](json& j) { j["tenant_claim"] = "t"; }), HasSubstr("tenant"));
  EXPECT_THAT(error([](json& j) { j.erase("tenant"); }), HasSubstr("tenant"));
  EXPECT_THAT(error([](json& j) { j["leeway_seconds"] = 3601; }), HasSubstr("leeway_seconds"));
  EXPECT_THAT(error([](json& j) { j["jwks_uri"] = "https://x"; }), HasSubstr("unknown"));

  const auto peer = [](const json& entry) { return ErrorOf({{"peers", {entry}}}); };
  EXPECT_THAT(peer({{"spiffe_id", "https://x/y"}, {"tenant", "a"}, {"roles", {"stats"}}}),
              HasSubstr("spiffe_id"));
  EXPECT_THAT(peer({{"spiffe_id", "spiffe://x/*"}, {"tenant", "a"}, {"roles", {"stats"}}}),
              HasSubstr("spiffe_id"));
  EXPECT_THAT(peer({{"spiffe_id", kWeb}, {"proxy", false}, {"roles", {"stats"}}}),
              HasSubstr("proxy"));
  EXPECT_THAT(peer({{"spiffe_id", kWeb}, {"roles", {"stats"}}}), HasSubstr("tenant"));
  EXPECT_THAT(peer({{"spiffe_id", kWeb}, {"proxy", true}, {"tenant", "a"}, {"roles", {"stats"}}}),
              HasSubstr("unknown"));
}

class IdentifyTest : public ::testing::Test {
 protected:
  IdentifyTest() : key_(*MakeApiKey("acme-1")), old_key_(*MakeApiKey("acme-0")) {
    json old = KeyEntry("acme-0", old_key_);
    old["expires"] = "2027-01-15T08:00:00Z";
    file_ = *ParseIdentityFile(
        json{{"api_keys", {KeyEntry("acme-1", key_), old}},
             {"peers",
              {{{"spiffe_id", kWeb}, {"tenant", "web"}, {"roles", {"stats"}}},
               {{"spiffe_id", kProxy}, {"proxy", true}, {"roles", {"generate", "stats_all"}}}}}}
            .dump());
    network_.only_this_host = false;
    network_.tenant_header = "x-tenant";
    network_.admin_tenants = {"ops"};
  }

  absl::StatusOr<Caller> Ask(const Shown& shown) const {
    return Identify(shown, network_, &file_, kClock);
  }
  static std::string ReasonOf(const absl::StatusOr<Caller>& caller) {
    return GetErrorDetail(caller.status()).reason;
  }

  const std::string key_, old_key_;
  IdentityFile file_;
  IdentityRules network_;
};

TEST_F(IdentifyTest, AKeySaysWho) {
  const std::string shown = "Bearer " + key_;
  const auto caller = Ask({.authorization = {shown}}).value();
  EXPECT_EQ(caller.tenant.id(), "acme");
  EXPECT_EQ(caller.roles, Roles{Role::kGenerate});
  EXPECT_EQ(caller.credential, "api_key:acme-1");
  const std::string lower = "bearer " + key_;
  EXPECT_TRUE(Ask({.authorization = {lower}}).ok());
}

TEST_F(IdentifyTest, WhateverIsWrongOneAnswer) {
  const std::string good = "Bearer " + key_;
  const std::string stranger = "Bearer " + *MakeApiKey("nobody");
  const std::string wrong = "Bearer " + *MakeApiKey("acme-1");
  const std::string expired = "Bearer " + old_key_;
  const std::string huge = "Bearer eta_" + std::string(100'000, 'a');
  const std::string token = "Bearer " + MakeToken(SigningKey(TokenAlgorithm::kES256),
                                                  std::string("k"), json{{"iss", "x"}});
  const std::set<std::vector<std::string_view>> bad = {
      {},        {""},   {"Bearer"}, {"Bearer "},    {key_},       {stranger}, {wrong},
      {expired}, {huge}, {token},    {"Basic YTpi"}, {good, good}, {good, ""}};
  std::set<std::string> answers, reasons;
  for (const auto& authorization : bad) {
    const auto caller = Ask({.authorization = authorization});
    ASSERT_FALSE(caller.ok());
    EXPECT_EQ(caller.status().code(), absl::StatusCode::kUnauthenticated);
    EXPECT_TRUE(GetErrorDetail(caller.status()).metadata.empty());
    answers.insert(std::string(caller.status().message()));
    reasons.insert(ReasonOf(caller));
    EXPECT_NE(DenialOf(caller.status()), "");
    EXPECT_THAT(DenialOf(caller.status()), ::testing::Not(HasSubstr(key_.substr(12))));
  }
  EXPECT_EQ(answers.size(), 1u);
  EXPECT_EQ(reasons, std::set<std::string>{"CREDENTIAL_INVALID"});
}

TEST_F(IdentifyTest, ABadKeyIsNotMadeGoodByACertificate) {
  EXPECT_EQ(ReasonOf(Ask({.authorization = {"Bearer x"}, .certified = true, .spiffe_id = kWeb})),
            "CREDENTIAL_INVALID");
}

TEST_F(IdentifyTest, APeerIsKnownByItsIdAsAWhole) {
  const auto caller = Ask({.certified = true, .spiffe_id = kWeb}).value();
  EXPECT_EQ(caller.tenant.id(), "web");
  EXPECT_EQ(caller.credential, kWeb);
  for (const std::string& other :
       {std::string(), std::string(kWeb) + "/x", std::string("spiffe://"),
        std::string("SPIFFE://example.org/web")}) {
    EXPECT_EQ(ReasonOf(Ask({.certified = true, .spiffe_id = other})), "CREDENTIAL_INVALID");
  }
  EXPECT_FALSE(Ask({.certified = false, .spiffe_id = kWeb}).ok());
}

TEST_F(IdentifyTest, OnlyAProxyMayNameTenants) {
  const auto caller = Ask({.tenants = {"acme"}, .certified = true, .spiffe_id = kProxy}).value();
  EXPECT_EQ(caller.tenant.id(), "acme");
  EXPECT_EQ(caller.roles, Roles{Role::kGenerate}) << "stats_all is the operator's";
  EXPECT_EQ(Ask({.tenants = {"ops"}, .certified = true, .spiffe_id = kProxy})->roles,
            (Roles{Role::kGenerate, Role::kStatsAll}))
      << "and not more than the proxy may";
  EXPECT_EQ(ReasonOf(Ask({.certified = true, .spiffe_id = kProxy})), "TENANT_REQUIRED");
  EXPECT_EQ(ReasonOf(Ask({.tenants = {"a", "b"}, .certified = true, .spiffe_id = kProxy})),
            "TENANT_REQUIRED");
  // Anybody else.
  const std::string shown = "Bearer " + key_;
  EXPECT_EQ(ReasonOf(Ask({.authorization = {shown}, .tenants = {"acme"}})), "CREDENTIAL_INVALID");
  EXPECT_EQ(ReasonOf(Ask({.tenants = {"web"}, .certified = true, .spiffe_id = kWeb})),
            "CREDENTIAL_INVALID");
  EXPECT_EQ(ReasonOf(Ask({.tenants = {"acme"}})), "CREDENTIAL_INVALID");
  network_.allow_unauthenticated = true;
  EXPECT_EQ(ReasonOf(Ask({.tenants = {"acme"}})), "CREDENTIAL_INVALID") << "there is a file";
}

TEST_F(IdentifyTest, OnThisHostTooOnlyWhomTheFileNamesAProxyIsBelieved) {
  network_.only_this_host = true;
  const std::string shown = "Bearer " + key_;
  EXPECT_EQ(ReasonOf(Ask({.tenants = {"acme"}})), "CREDENTIAL_INVALID");
  EXPECT_EQ(ReasonOf(Ask({})), "CREDENTIAL_INVALID");
  EXPECT_EQ(ReasonOf(Ask({.authorization = {shown}, .tenants = {"acme"}})), "CREDENTIAL_INVALID");
  EXPECT_EQ(Ask({.authorization = {shown}})->tenant.id(), "acme");
  EXPECT_EQ(Ask({.tenants = {"acme"}, .certified = true, .spiffe_id = kProxy})->tenant.id(),
            "acme");
}

TEST_F(IdentifyTest, ACredentialOutranksTheHeaderAndMustAgreeWithIt) {
  const std::string shown = "Bearer " + key_;
  Shown by_proxy{
      .authorization = {shown}, .tenants = {"acme"}, .certified = true, .spiffe_id = kProxy};
  EXPECT_EQ(Ask(by_proxy)->credential, "api_key:acme-1");
  by_proxy.tenants = {"other"};
  const auto other = Ask(by_proxy);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ReasonOf(other), "TENANT_MISMATCH");
}

TEST_F(IdentifyTest, WithoutAFileTheHeaderIsBelievedWhereItMayBe) {
  IdentityRules rules{.tenant_header = "x-tenant", .admin_tenants = {"ops"}};
  EXPECT_EQ(Identify({.tenants = {"acme"}}, rules, nullptr, kClock)->roles,
            (Roles{Role::kGenerate, Role::kCalibrate, Role::kStats}));
  EXPECT_EQ(Identify({.tenants = {"ops"}}, rules, nullptr, kClock)->roles, Roles::All());
  EXPECT_EQ(ReasonOf(Identify({}, rules, nullptr, kClock)), "TENANT_REQUIRED");
  rules.only_this_host = false;
  EXPECT_FALSE(Identify({.tenants = {"acme"}}, rules, nullptr, kClock).ok());
  EXPECT_FALSE(Identify({.tenants = {"acme"}, .certified = true}, rules, nullptr, kClock).ok())
      << "a certificate alone makes nobody a proxy";
  rules.allow_unauthenticated = true;
  EXPECT_TRUE(Identify({.tenants = {"acme"}}, rules, nullptr, kClock).ok());
}

TEST_F(IdentifyTest, WithoutAnythingAllAreDefaultWithAllRoles) {
  const auto caller = Identify({.authorization = {"Bearer of somebody else"}}, {}, nullptr, kClock);
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ(caller->tenant.id(), kDefaultTenant);
  EXPECT_EQ(caller->roles, Roles::All());
  EXPECT_EQ(caller->credential, "none");
}

TEST(CheckRoles, AnyOfThoseThatAreNeeded) {
  Caller caller{.tenant = *Tenant::Parse("a"), .roles = {Role::kStats}, .credential = "api_key:a"};
  EXPECT_TRUE(CheckRoles(caller, {Role::kStats, Role::kStatsAll}).ok());
  const absl::Status status = CheckRoles(caller, {Role::kGenerate, Role::kCalibrate});
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(GetErrorDetail(status).reason, "ROLE_REQUIRED");
  EXPECT_EQ(GetErrorDetail(status).metadata.at("roles"), "generate,calibrate");
  EXPECT_EQ(GetErrorDetail(CheckRoles(caller, {Role::kAdmin})).reason, "ADMIN_REQUIRED");
  EXPECT_FALSE(CheckRoles(caller, Roles::None()).ok()) << "what needs no role nobody may";
}

TEST(Identity, ReadsItsFileAgainAndKeepsWhatWasGood) {
  const TempFolder folder(FastParent());
  const std::string first = *MakeApiKey("k-1"), second = *MakeApiKey("k-2");
  const auto file = [](const std::string& id, const std::string& key) {
    return json{{"api_keys", {KeyEntry(id, key)}}}.dump();
  };
  const std::string path = folder.Write("identity.json", file("k-1", first));
  std::vector<absl::Status> reports;
  auto identity = Identity::Open(
      path, {}, false, [&reports](const absl::Status& status) { reports.push_back(status); });
  ASSERT_TRUE(identity.ok()) << identity.status();
  const std::string by_first = "Bearer " + first, by_second = "Bearer " + second;
  EXPECT_TRUE((*identity)->Of({.authorization = {by_first}}).ok());

  folder.Write("identity.json", "{");
  (*identity)->file()->Poll();
  EXPECT_TRUE((*identity)->Of({.authorization = {by_first}}).ok()) << "still in effect";
  EXPECT_FALSE((*identity)->file()->Status().current);

  folder.Write("identity.json", file("k-2", second));
  (*identity)->file()->Poll();
  EXPECT_FALSE((*identity)->Of({.authorization = {by_first}}).ok());
  EXPECT_TRUE((*identity)->Of({.authorization = {by_second}}).ok());
  EXPECT_TRUE((*identity)->file()->Status().current);
  identity->reset();  // its thread may report too
  ASSERT_GE(reports.size(), 2u);
  EXPECT_FALSE(reports.front().ok());
  EXPECT_THAT(std::string(reports.front().message()), HasSubstr("--identity"));
  EXPECT_TRUE(reports.back().ok());
}

TEST(Identity, KnowsTheTenantsThatAreNamedBeforeTheyCall) {
  const auto known = [](const std::string& path, const IdentityRules& rules) {
    std::vector<std::string> names;
    const auto identity = Identity::Open(path, rules, true, [](const absl::Status&) {});
    EXPECT_TRUE(identity.ok()) << identity.status();
    if (!identity.ok()) return names;
    for (const Tenant& tenant : (*identity)->KnownTenants()) names.push_back(tenant.id());
    return names;
  };
  EXPECT_THAT(known("", {}), ::testing::ElementsAre("default"));
  EXPECT_THAT(known("", {.tenant_header = "x-tenant"}), ::testing::IsEmpty());
  EXPECT_THAT(known("", {.tenant_header = "x-tenant", .admin_tenants = {"ops"}}),
              ::testing::ElementsAre("ops"));
  const TempFolder folder(FastParent());
  const json web = {{"spiffe_id", kWeb}, {"tenant", "web"}, {"roles", {"generate"}}};
  const json keys = {KeyEntry("k-1", "first", "acme"), KeyEntry("k-2", "second", "acme")};
  const std::string path =
      folder.Write("identity.json", json{{"api_keys", keys}, {"peers", {web}}}.dump());
  EXPECT_THAT(known(path, {}), ::testing::ElementsAre("acme", "web"));
}

TEST(Identity, EntriesThatCouldNotWorkAreRefused) {
  const TempFolder folder(FastParent());
  const auto open = [&folder](const json& peer, const IdentityRules& rules, bool client_ca) {
    const std::string path = folder.Write("f.json", json{{"peers", {peer}}}.dump());
    return std::string(
        Identity::Open(path, rules, client_ca, [](const absl::Status&) {}).status().message());
  };
  const json proxy = {{"spiffe_id", kProxy}, {"proxy", true}, {"roles", {"generate"}}};
  EXPECT_THAT(open(proxy, {.tenant_header = "x-tenant"}, false), HasSubstr("--tls_client_ca"));
  EXPECT_THAT(open(proxy, {}, true), HasSubstr("--tenant_header"));
  EXPECT_EQ(open(proxy, {.tenant_header = "x-tenant"}, true), "");
  const IdentityRules with_admins{.tenant_header = "x-tenant", .admin_tenants = {"ops"}};
  EXPECT_THAT(open(proxy, with_admins, true), HasSubstr("no proxy has stats_all, admin or route"));
  for (const char* const role : {"stats_all", "admin", "route"}) {
    json operators = proxy;
    operators["roles"].push_back(role);
    EXPECT_EQ(open(operators, with_admins, true), "");
    EXPECT_THAT(open(operators, {.tenant_header = "x-tenant"}, true),
                HasSubstr("--admin_tenants only, and it names none"));
  }
  const json web = {{"spiffe_id", kWeb}, {"tenant", "web"}, {"roles", {"generate"}}};
  for (const bool only_this_host : {false, true}) {
    EXPECT_THAT(open(web, {.tenant_header = "x-tenant", .only_this_host = only_this_host}, true),
                HasSubstr("--tenant_header"));
  }
  EXPECT_THAT(
      std::string(Identity::Open(folder.path() + "/none", {}, false, {}).status().message()),
      HasSubstr("--identity: cannot be opened"));
}

}  // namespace
}  // namespace eta::testing
