// lint: untrusted-input, fuzz-covered
#include "service/identity/json_web_token.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "service/identity/base64url.h"

namespace eta {
namespace {

using Json = nlohmann::json;
using std::chrono::system_clock;

constexpr size_t kMaxTokenDepth = 16;
constexpr size_t kMaxSubjectBytes = 128;
constexpr double kLatestSecond = 1e11;  // in the year 5138; a later one is no date

absl::Status Wrong(const char* why) {
  return absl::UnauthenticatedError(absl::StrCat("token: ", why));
}

// Decodes one part of a token: an object without repeated members.
std::optional<JsonTree> Decode(std::string_view part) {
  const auto text = DecodeBase64Url(part);
  if (!text) return std::nullopt;
  auto tree = ParseStrictJson("token", *text, kMaxTokenBytes, kMaxTokenDepth);
  if (!tree.ok() || !tree->root().is_object()) return std::nullopt;
  return *std::move(tree);
}

// Null if the member is missing or is no text.
const std::string* TextMember(const Json& object, const std::string& name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return nullptr;
  return &found->get_ref<const std::string&>();
}

// Seconds since 1970; absent if the value is no date.
std::optional<double> Date(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  const double seconds = value.get<double>();
  if (!(seconds >= 0.0 && seconds <= kLatestSecond)) return std::nullopt;
  return seconds;
}

absl::Status CheckHeader(const Json& header, const TokenKey& key) {
  const std::string* const algorithm = TextMember(header, "alg");
  if (algorithm == nullptr || *algorithm != Name(key.algorithm())) {
    return Wrong("its algorithm is not its key's");
  }
  if (header.contains("crit")) return Wrong("it demands extensions");
  if (!header.contains("typ")) return absl::OkStatus();
  const std::string* const type = TextMember(header, "typ");
  if (type != nullptr &&
      (absl::EqualsIgnoreCase(*type, "JWT") || absl::EqualsIgnoreCase(*type, "at+jwt"))) {
    return absl::OkStatus();
  }
  return Wrong("it is of another type");
}

absl::StatusOr<const TokenKey*> KeyOf(const Json& header, const TokenIssuer& issuer) {
  if (!header.contains("kid")) {
    if (issuer.keys.size() == 1) return &issuer.keys.begin()->second;
    return Wrong("it names no key and its issuer has several");
  }
  const std::string* const name = TextMember(header, "kid");
  const auto found = name == nullptr ? issuer.keys.end() : issuer.keys.find(*name);
  if (found == issuer.keys.end()) return Wrong("its key is not known");
  return &found->second;
}

absl::Status CheckTimes(const Json& claims, const TokenIssuer& issuer,
                        system_clock::time_point now) {
  const double second = std::chrono::duration<double>(now.time_since_epoch()).count();
  const auto leeway = static_cast<double>(issuer.leeway.count());
  if (!claims.contains("exp")) return Wrong("it has no expiry");
  const auto expiry = Date(claims["exp"]);
  if (!expiry) return Wrong("its expiry is no date");
  if (second >= *expiry + leeway) return Wrong("it has expired");
  for (const char* const begin : {"nbf", "iat"}) {
    if (!claims.contains(begin)) continue;
    const auto date = Date(claims[begin]);
    if (!date) return Wrong("its beginning is no date");
    if (second < *date - leeway) return Wrong("it is not valid yet");
  }
  return absl::OkStatus();
}

absl::Status CheckAudience(const Json& claims, const TokenIssuer& issuer) {
  const auto ours = [&issuer](const Json& value) {
    return value.is_string() &&
           std::find(issuer.audiences.begin(), issuer.audiences.end(),
                     value.get_ref<const std::string&>()) != issuer.audiences.end();
  };
  const auto found = claims.find("aud");
  if (found != claims.end() &&
      (ours(*found) || (found->is_array() && std::any_of(found->begin(), found->end(), ours)))) {
    return absl::OkStatus();
  }
  return Wrong("it is meant for others");
}

Roles RolesOf(const Json& claims, const TokenIssuer& issuer) {
  if (issuer.roles_claim.empty()) return issuer.roles;
  Roles granted = Roles::None();
  const auto grant = [&granted](const std::string& name) {
    if (const auto role = ParseRole(name)) granted.Add(*role);
  };
  const auto found = claims.find(issuer.roles_claim);
  if (found == claims.end()) return granted;
  if (found->is_string()) {
    for (const auto name : absl::StrSplit(found->get_ref<const std::string&>(), ' ')) {
      grant(std::string(name));
    }
  } else if (found->is_array()) {
    for (const Json& name : *found) {
      if (name.is_string()) grant(name.get_ref<const std::string&>());
    }
  }
  return granted & issuer.roles;
}

absl::StatusOr<Tenant> TenantOf(const Json& claims, const TokenIssuer& issuer) {
  if (issuer.tenant) return *issuer.tenant;
  const std::string* const name = TextMember(claims, issuer.tenant_claim);
  if (name == nullptr) return Wrong("it names no tenant");
  auto tenant = Tenant::Parse(*name);
  if (!tenant.ok()) return Wrong("its tenant is no name");
  return tenant;
}

std::string CredentialOf(const Json& header, const Json& claims, const TokenIssuer& issuer) {
  const std::string* const subject = TextMember(claims, "sub");
  if (subject != nullptr && !subject->empty() && subject->size() <= kMaxSubjectBytes) {
    return absl::StrCat("jwt:", issuer.issuer, " ", *subject);
  }
  const std::string* const key = TextMember(header, "kid");
  return absl::StrCat("jwt:", issuer.issuer, " key ", key != nullptr ? *key : "");
}

}  // namespace

absl::StatusOr<Caller> VerifyToken(std::string_view token, const TokenIssuers& issuers,
                                   system_clock::time_point now) {
  if (token.size() > kMaxTokenBytes) return Wrong("it is too long");
  const size_t first = token.find('.');
  const size_t last = token.rfind('.');
  if (first == std::string_view::npos || first == last ||
      token.substr(first + 1, last - first - 1).find('.') != std::string_view::npos) {
    return Wrong("it has not three parts");
  }
  const auto header_tree = Decode(token.substr(0, first));
  const auto claims_tree = Decode(token.substr(first + 1, last - first - 1));
  const auto signature = DecodeBase64Url(token.substr(last + 1));
  if (!header_tree || !claims_tree || !signature) return Wrong("it cannot be read");
  const Json& header = header_tree->root();
  const Json& claims = claims_tree->root();

  const std::string* const named = TextMember(claims, "iss");
  const auto issuer = named == nullptr ? issuers.end() : issuers.find(*named);
  if (issuer == issuers.end()) return Wrong("its issuer is not known");
  ASSIGN_OR_RETURN(const auto key, KeyOf(header, issuer->second));
  RETURN_IF_ERROR(CheckHeader(header, *key));
  if (!key->Verifies(token.substr(0, last), *signature)) return Wrong("its signature is wrong");

  RETURN_IF_ERROR(CheckTimes(claims, issuer->second, now));
  RETURN_IF_ERROR(CheckAudience(claims, issuer->second));
  ASSIGN_OR_RETURN(auto tenant, TenantOf(claims, issuer->second));
  return Caller{.tenant = std::move(tenant),
                .roles = RolesOf(claims, issuer->second),
                .credential = CredentialOf(header, claims, issuer->second)};
}

}  // namespace eta
