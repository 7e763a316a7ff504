// Tokens: what is good, and everything that must not pass.
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "service/identity/json_web_token.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/identity/token_maker.h"

namespace eta::testing {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using std::chrono::system_clock;

constexpr char kIssuer[] = "https://login.example.org";

// Keys of RSA take long to make.
const SigningKey& KeyOf(TokenAlgorithm algorithm, bool another = false) {
  static std::map<std::pair<TokenAlgorithm, bool>, SigningKey> keys;
  return keys.try_emplace({algorithm, another}, algorithm).first->second;
}
const SigningKey& AnotherKeyOf(TokenAlgorithm algorithm) {
  return KeyOf(algorithm, true);
}

TokenKey PublicKey(const SigningKey& key) {
  return *TokenKey::FromPem(key.algorithm(), key.PublicPem());
}

class TokenTest : public ::testing::TestWithParam<TokenAlgorithm> {
 protected:
  TokenTest() : key_(KeyOf(GetParam())) {
    TokenIssuer issuer;
    issuer.issuer = kIssuer;
    issuer.audiences = {"eta", "eta-staging"};
    issuer.keys.emplace("k1", PublicKey(key_));
    issuer.tenant_claim = "tenant";
    issuer.roles = {Role::kGenerate, Role::kStats};
    issuer.roles_claim = "scope";
    issuers_.emplace(kIssuer, issuer);
  }

  TokenIssuer& issuer() { return issuers_.find(kIssuer)->second; }
  json Claims() const {
    return {{"iss", kIssuer},   {"aud", "eta"},        {"exp", kNow + 60},
            {"tenant", "acme"}, {"scope", "generate"}, {"sub", "web"}};
  }
  json Header() const {
    return {{"alg", std::string(Name(GetParam()))}, {"kid", "k1"}, {"typ", "JWT"}};
  }
  absl::StatusOr<Caller> Verify(const std::string& token) const {
    return VerifyToken(token, issuers_, kClock);
  }
  absl::StatusOr<Caller> VerifyWith(const json& claims) const {
    return Verify(MakeToken(key_, Header(), claims));
  }
  void ExpectWrong(const absl::StatusOr<Caller>& caller, const std::string& why) const {
    ASSERT_FALSE(caller.ok()) << why;
    EXPECT_THAT(caller.status(), FailsSaying(absl::StatusCode::kUnauthenticated, why));
  }

  const SigningKey& key_;
  TokenIssuers issuers_;
};

INSTANTIATE_TEST_SUITE_P(Algorithms, TokenTest,
                         ::testing::Values(TokenAlgorithm::kES256, TokenAlgorithm::kRS256,
                                           TokenAlgorithm::kEdDSA),
                         [](const auto& param) { return std::string(Name(param.param)); });

TEST_P(TokenTest, SaysWhoseItIs) {
  const auto caller = VerifyWith(Claims()).value();
  EXPECT_EQ(caller.tenant.id(), "acme");
  EXPECT_EQ(caller.roles, Roles{Role::kGenerate});
  EXPECT_EQ(caller.credential, "jwt:https://login.example.org web");
}

TEST_P(TokenTest, ItsKeyMayBeAJsonWebKey) {
  const auto key = TokenKey::FromJwk(GetParam(), key_.Jwk()).value();
  issuer().keys.clear();
  issuer().keys.emplace("k1", key);
  EXPECT_TRUE(VerifyWith(Claims()).ok());
}

TEST_P(TokenTest, GrantsAtMostTheIssuersRoles) {
  json claims = Claims();
  claims["scope"] = "stats admin generate openid";
  EXPECT_EQ(VerifyWith(claims)->roles, (Roles{Role::kGenerate, Role::kStats}));
  claims["scope"] = json::array({"admin", "stats", 7});
  EXPECT_EQ(VerifyWith(claims)->roles, Roles{Role::kStats});
  claims.erase("scope");
  EXPECT_TRUE(VerifyWith(claims)->roles.empty());
  issuer().roles_claim.clear();
  EXPECT_EQ(VerifyWith(claims)->roles, (Roles{Role::kGenerate, Role::kStats}));
}

TEST_P(TokenTest, ATenantMayBeFixed) {
  issuer().tenant_claim.clear();
  issuer().tenant = *Tenant::Parse("fixed");
  EXPECT_EQ(VerifyWith(Claims())->tenant.id(), "fixed");
}

TEST_P(TokenTest, NoSignatureNoEntry) {
  json header = Header();
  const std::string claims = Base64Url(Claims().dump());
  for (const char* const none : {"none", "None", "NONE", ""}) {
    header["alg"] = none;
    ExpectWrong(Verify(Base64Url(header.dump()) + "." + claims + "."), "algorithm");
  }
  ExpectWrong(Verify(Base64Url(Header().dump()) + "." + claims + "."), "signature");
  header.erase("alg");
  ExpectWrong(Verify(MakeToken(key_, header, Claims())), "algorithm");
}

TEST_P(TokenTest, APublicKeyIsNoSharedSecret) {
  json header = Header();
  header["alg"] = "HS256";
  const std::string signed_part = Base64Url(header.dump()) + "." + Base64Url(Claims().dump());
  const std::string mac = HmacSha256(key_.PublicPem(), signed_part);
  ExpectWrong(Verify(signed_part + "." + Base64Url(mac)), "algorithm");
  // Nor with the header of the real algorithm.
  const std::string honest = Base64Url(Header().dump()) + "." + Base64Url(Claims().dump());
  ExpectWrong(Verify(honest + "." + Base64Url(HmacSha256(key_.PublicPem(), honest))), "signature");
}

TEST_P(TokenTest, AnotherAlgorithmsNameIsRefusedThoughTheSignatureIsGood) {
  json header = Header();
  header["alg"] = GetParam() == TokenAlgorithm::kRS256 ? "ES256" : "RS256";
  ExpectWrong(Verify(MakeToken(key_, header, Claims())), "algorithm");
}

TEST_P(TokenTest, AnotherKeyOrChangedBytesAreRefused) {
  ExpectWrong(Verify(MakeToken(AnotherKeyOf(GetParam()), Header(), Claims())), "signature");
  const std::string good = MakeToken(key_, Header(), Claims());
  json changed = Claims();
  changed["tenant"] = "other";
  const std::string signature = good.substr(good.rfind('.'));
  ExpectWrong(Verify(Base64Url(Header().dump()) + "." + Base64Url(changed.dump()) + signature),
              "signature");
  std::string bent = good;
  bent[bent.rfind('.') + 5] ^= 1;
  EXPECT_FALSE(Verify(bent).ok());
  EXPECT_FALSE(Verify(good + "AAAA").ok());
  EXPECT_FALSE(Verify(good.substr(0, good.size() - 4)).ok());
}

TEST_P(TokenTest, TimesCountWithLeeway) {
  json claims = Claims();
  claims["exp"] = kNow - 59;
  EXPECT_TRUE(VerifyWith(claims).ok());
  claims["exp"] = kNow - 60;
  ExpectWrong(VerifyWith(claims), "expired");
  claims["exp"] = kNow + 0.5;
  EXPECT_TRUE(VerifyWith(claims).ok());
  for (const json& odd : {json("soon"), json(-5), json(1e300), json(nullptr), json::array()}) {
    claims["exp"] = odd;
    ExpectWrong(VerifyWith(claims), "expiry");
  }
  claims.erase("exp");
  ExpectWrong(VerifyWith(claims), "expiry");
  for (const char* const begin : {"nbf", "iat"}) {
    claims = Claims();
    claims[begin] = kNow + 60;
    EXPECT_TRUE(VerifyWith(claims).ok()) << begin;
    claims[begin] = kNow + 61;
    ExpectWrong(VerifyWith(claims), "not valid yet");
    claims[begin] = "now";
    ExpectWrong(VerifyWith(claims), "no date");
  }
}

TEST_P(TokenTest, IssuerAndAudienceMustBeOurs) {
  json claims = Claims();
  claims["aud"] = json::array({"other", "eta-staging"});
  EXPECT_TRUE(VerifyWith(claims).ok());
  for (const json& aud : {json("other"), json("ETA"), json::array(), json(7), json("")}) {
    claims["aud"] = aud;
    ExpectWrong(VerifyWith(claims), "for others");
  }
  claims.erase("aud");
  ExpectWrong(VerifyWith(claims), "for others");
  claims = Claims();
  for (const json& iss : {json("https://login.example.org/"), json(nullptr), json("")}) {
    claims["iss"] = iss;
    ExpectWrong(VerifyWith(claims), "issuer");
  }
}

TEST_P(TokenTest, ItMustNameATenant) {
  json claims = Claims();
  for (const json& tenant : {json(""), json("two words"), json("t\xc3\xa9nant")}) {
    claims["tenant"] = tenant;
    ExpectWrong(VerifyWith(claims), "tenant");
  }
  claims["tenant"] = json::array({"acme"});
  ExpectWrong(VerifyWith(claims), "tenant");
  claims.erase("tenant");
  ExpectWrong(VerifyWith(claims), "tenant");
}

TEST_P(TokenTest, KeysAreChosenByName) {
  json header = Header();
  header["kid"] = "k2";
  ExpectWrong(Verify(MakeToken(key_, header, Claims())), "key is not known");
  header["kid"] = 1;
  ExpectWrong(Verify(MakeToken(key_, header, Claims())), "key is not known");
  header.erase("kid");
  EXPECT_TRUE(Verify(MakeToken(key_, header, Claims())).ok()) << "there is only one";
  issuer().keys.emplace("k2", PublicKey(AnotherKeyOf(GetParam())));
  ExpectWrong(Verify(MakeToken(key_, header, Claims())), "names no key");
}

TEST_P(TokenTest, HeadersThatAskForMoreAreRefused) {
  json header = Header();
  header["crit"] = json::array({"exp"});
  ExpectWrong(Verify(MakeToken(key_, header, Claims())), "extensions");
  header = Header();
  header["typ"] = "logout+jwt";
  ExpectWrong(Verify(MakeToken(key_, header, Claims())), "another type");
  header["typ"] = "at+JWT";
  EXPECT_TRUE(Verify(MakeToken(key_, header, Claims())).ok());
  // Keys that a token brings along are no keys.
  header["jwk"] = AnotherKeyOf(GetParam()).Jwk();
  header["jku"] = "https://evil.example";
  EXPECT_TRUE(Verify(MakeToken(key_, header, Claims())).ok());
  ExpectWrong(Verify(MakeToken(AnotherKeyOf(GetParam()), header, Claims())), "signature");
}

TEST_P(TokenTest, MembersThatAreThereTwiceAreRefused) {
  const std::string claims = Claims().dump();
  const std::string twice = claims.substr(0, claims.size() - 1) + R"(,"tenant":"other"})";
  const std::string signed_part = Base64Url(Header().dump()) + "." + Base64Url(twice);
  ExpectWrong(Verify(signed_part + "." + Base64Url(key_.Sign(signed_part))), "cannot be read");
}

TEST_P(TokenTest, MalformedAndHugeOnesAreRefused) {
  const std::string good = MakeToken(key_, Header(), Claims());
  for (const std::string& bad :
       {std::string(), std::string("."), std::string(".."), std::string("..."), std::string("a.b"),
        std::string("a.b.c"), good + ".", "." + good, good + "=", " " + good, good + "\n",
        std::string("\0.\0.\0", 5), std::string("e30.e30.e30"), std::string("W10.W10.W10")}) {
    EXPECT_FALSE(Verify(bad).ok()) << bad;
  }
  json claims = Claims();
  claims["more"] = std::string(kMaxTokenBytes, 'x');
  ExpectWrong(VerifyWith(claims), "too long");
  const std::string deep = Base64Url(std::string(3000, '[') + std::string(3000, ']'));
  ExpectWrong(Verify(deep.substr(0, 4000) + ".e30."), "cannot be read");
}

TEST(TokenKey, TakesTheRightKindOfPublicKeyOnly) {
  const SigningKey &ec = KeyOf(TokenAlgorithm::kES256), &rsa = KeyOf(TokenAlgorithm::kRS256),
                   &ed = KeyOf(TokenAlgorithm::kEdDSA);
  const SigningKey weak(TokenAlgorithm::kRS256, 1024);
  for (const SigningKey* const key : {&ec, &rsa, &ed}) {
    for (const auto algorithm :
         {TokenAlgorithm::kES256, TokenAlgorithm::kRS256, TokenAlgorithm::kEdDSA}) {
      const bool fits = algorithm == key->algorithm();
      EXPECT_EQ(TokenKey::FromPem(algorithm, key->PublicPem()).ok(), fits);
      EXPECT_EQ(TokenKey::FromJwk(algorithm, key->Jwk()).ok(), fits);
    }
    EXPECT_FALSE(TokenKey::FromPem(key->algorithm(), key->PrivatePem()).ok());
    json jwk = key->Jwk();
    jwk["alg"] = "HS256";
    EXPECT_FALSE(TokenKey::FromJwk(key->algorithm(), jwk).ok());
    jwk["alg"] = std::string(Name(key->algorithm()));
    jwk["use"] = "sig";
    jwk["kid"] = "any";
    EXPECT_TRUE(TokenKey::FromJwk(key->algorithm(), jwk).ok());
    jwk["use"] = "enc";
    EXPECT_FALSE(TokenKey::FromJwk(key->algorithm(), jwk).ok());
    jwk["use"] = "sig";
    jwk["key_ops"] = {"verify"};
    EXPECT_TRUE(TokenKey::FromJwk(key->algorithm(), jwk).ok());
    jwk["key_ops"] = {"sign"};
    EXPECT_FALSE(TokenKey::FromJwk(key->algorithm(), jwk).ok());
    jwk.erase("key_ops");
    jwk["d"] = "AAAA";
    EXPECT_FALSE(TokenKey::FromJwk(key->algorithm(), jwk).ok()) << "a private key";
  }
  EXPECT_FALSE(TokenKey::FromPem(TokenAlgorithm::kRS256, weak.PublicPem()).ok());
  EXPECT_FALSE(TokenKey::FromJwk(TokenAlgorithm::kRS256, weak.Jwk()).ok());
  json off_curve = ec.Jwk();
  off_curve["y"] = off_curve["x"];
  EXPECT_FALSE(TokenKey::FromJwk(TokenAlgorithm::kES256, off_curve).ok());
}

}  // namespace
}  // namespace eta::testing
