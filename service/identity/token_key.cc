// lint: untrusted-input, fuzz-covered
#include "service/identity/token_key.h"

#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "service/identity/base64url.h"
#include "service/identity/openssl_owned.h"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::pair<TokenAlgorithm, std::string_view>, 3> kAlgorithms = {{
    {TokenAlgorithm::kES256, "ES256"},
    {TokenAlgorithm::kRS256, "RS256"},
    {TokenAlgorithm::kEdDSA, "EdDSA"},
}};
constexpr size_t kCoordinateBytes = 32;  // of P-256
// The most bytes of a signature: a list of two numbers, each with a type, a length and at most one
// zero before it.
constexpr size_t kMaxDerBytes = 2 + 2 * (3 + kCoordinateBytes);
constexpr size_t kMaxPemBytes = 8192;
constexpr int kMinRsaBits = 2048, kMaxRsaBits = 8192;

absl::Status BadKey() {
  ERR_clear_error();
  return absl::InvalidArgumentError(
      "must be a public key that fits its algorithm: EC on P-256 for ES256, RSA of 2048 to 8192 "
      "bits for RS256, Ed25519 for EdDSA");
}

bool OnP256(const EVP_PKEY& key) {
  char group[64] = {};
  size_t length = 0;
  return EVP_PKEY_get_utf8_string_param(&key, OSSL_PKEY_PARAM_GROUP_NAME, group, sizeof(group),
                                        &length) == 1 &&
         std::string_view(group, length) == "prime256v1";
}

// The bytes of a JWK's member; empty if it is missing or malformed.
std::string Member(const Json& jwk, const char* name) {
  const auto found = jwk.find(name);
  if (found == jwk.end() || !found->is_string()) return {};
  return DecodeBase64Url(found->get_ref<const std::string&>()).value_or("");
}

bool Says(const Json& jwk, const char* name, std::string_view value) {
  const auto found = jwk.find(name);
  return found != jwk.end() && found->is_string() && found->get_ref<const std::string&>() == value;
}

// True if the key's operations, if it lists them, include verifying.
bool MayVerify(const Json& jwk) {
  const auto found = jwk.find("key_ops");
  return found == jwk.end() ||
         (found->is_array() && std::find(found->begin(), found->end(), "verify") != found->end());
}

EVP_PKEY* FromParams(const char* type, OSSL_PARAM_BLD* builder) {
  const Owned<OSSL_PARAM, OSSL_PARAM_free> params(OSSL_PARAM_BLD_to_param(builder));
  const Owned<EVP_PKEY_CTX, EVP_PKEY_CTX_free> context(
      EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr));
  EVP_PKEY* key = nullptr;
  if (!params || !context || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, params.get()) != 1) {
    return nullptr;
  }
  return key;
}

EVP_PKEY* EcKey(const Json& jwk) {
  const std::string x = Member(jwk, "x"), y = Member(jwk, "y");
  if (!Says(jwk, "kty", "EC") || !Says(jwk, "crv", "P-256") || x.size() != kCoordinateBytes ||
      y.size() != kCoordinateBytes) {
    return nullptr;
  }
  const std::string point = '\x04' + x + y;
  const Owned<OSSL_PARAM_BLD, OSSL_PARAM_BLD_free> builder(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0);
  OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                   point.size());
  return FromParams("EC", builder.get());
}

EVP_PKEY* RsaKey(const Json& jwk) {
  const std::string n = Member(jwk, "n"), e = Member(jwk, "e");
  if (!Says(jwk, "kty", "RSA") || n.empty() || n.size() > kMaxRsaBits / 8 + 1 || e.empty() ||
      e.size() > 8) {
    return nullptr;
  }
  const auto number = [](const std::string& bytes) {
    return Owned<BIGNUM, BN_free>(BN_bin2bn(reinterpret_cast<const unsigned char*>(bytes.data()),
                                            static_cast<int>(bytes.size()), nullptr));
  };
  const auto modulus = number(n), exponent = number(e);
  const Owned<OSSL_PARAM_BLD, OSSL_PARAM_BLD_free> builder(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, modulus.get());
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, exponent.get());
  return FromParams("RSA", builder.get());
}

EVP_PKEY* EdKey(const Json& jwk) {
  const std::string x = Member(jwk, "x");
  if (!Says(jwk, "kty", "OKP") || !Says(jwk, "crv", "Ed25519")) return nullptr;
  return EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr,
                                     reinterpret_cast<const unsigned char*>(x.data()), x.size());
}

// Converts an ECDSA signature to OpenSSL's form; empty if its length is wrong.
std::string ToDer(std::string_view signature) {
  // cannot wrap: constants
  if (signature.size() != 2 * kCoordinateBytes) return {};
  const auto* bytes = reinterpret_cast<const unsigned char*>(signature.data());
  const Owned<ECDSA_SIG, ECDSA_SIG_free> pair(ECDSA_SIG_new());
  BIGNUM* r = BN_bin2bn(bytes, kCoordinateBytes, nullptr);
  BIGNUM* s = BN_bin2bn(bytes + kCoordinateBytes, kCoordinateBytes, nullptr);
  if (!pair || ECDSA_SIG_set0(pair.get(), r, s) != 1) {
    BN_free(r);
    BN_free(s);
    return {};
  }
  std::string der(kMaxDerBytes, '\0');
  auto* end = reinterpret_cast<unsigned char*>(der.data());
  der.resize(static_cast<size_t>(std::max(0, i2d_ECDSA_SIG(pair.get(), &end))));
  return der;
}

}  // namespace

std::string_view Name(TokenAlgorithm algorithm) {
  return std::find_if(kAlgorithms.begin(), kAlgorithms.end(),
                      [algorithm](const auto& known) { return known.first == algorithm; })
      ->second;
}

std::optional<TokenAlgorithm> ParseTokenAlgorithm(std::string_view name) {
  for (const auto& [algorithm, known] : kAlgorithms) {
    if (known == name) return algorithm;
  }
  return std::nullopt;
}

absl::StatusOr<TokenKey> TokenKey::Checked(TokenAlgorithm algorithm, Handle key) {
  if (key == nullptr) return BadKey();
  bool fits = false;
  switch (algorithm) {
    case TokenAlgorithm::kES256:
      fits = EVP_PKEY_is_a(key.get(), "EC") == 1 && OnP256(*key);
      break;
    case TokenAlgorithm::kRS256:
      fits = EVP_PKEY_is_a(key.get(), "RSA") == 1 && EVP_PKEY_get_bits(key.get()) >= kMinRsaBits &&
             EVP_PKEY_get_bits(key.get()) <= kMaxRsaBits;
      break;
    case TokenAlgorithm::kEdDSA:
      fits = EVP_PKEY_is_a(key.get(), "ED25519") == 1;
      break;
  }
  if (!fits) return BadKey();
  const Owned<EVP_PKEY_CTX, EVP_PKEY_CTX_free> context(
      EVP_PKEY_CTX_new_from_pkey(nullptr, key.get(), nullptr));
  if (!context || EVP_PKEY_public_check_quick(context.get()) != 1) return BadKey();
  return TokenKey(algorithm, std::move(key));
}

absl::StatusOr<TokenKey> TokenKey::FromPem(TokenAlgorithm algorithm, const std::string& pem) {
  if (pem.size() > kMaxPemBytes) return BadKey();
  const Owned<BIO, BIO_free_all> text(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  if (!text) return BadKey();
  // Reads "BEGIN PUBLIC KEY" only, since a private key has no place in the file.
  return Checked(algorithm,
                 Handle(PEM_read_bio_PUBKEY(text.get(), nullptr, nullptr, nullptr), EVP_PKEY_free));
}

absl::StatusOr<TokenKey> TokenKey::FromJwk(TokenAlgorithm algorithm, const Json& jwk) {
  if (!jwk.is_object() || jwk.contains("d") || jwk.contains("k")) return BadKey();
  if (jwk.contains("alg") && !Says(jwk, "alg", Name(algorithm))) return BadKey();
  if (jwk.contains("use") && !Says(jwk, "use", "sig")) return BadKey();
  if (!MayVerify(jwk)) return BadKey();
  EVP_PKEY* key = nullptr;
  switch (algorithm) {
    case TokenAlgorithm::kES256:
      key = EcKey(jwk);
      break;
    case TokenAlgorithm::kRS256:
      key = RsaKey(jwk);
      break;
    case TokenAlgorithm::kEdDSA:
      key = EdKey(jwk);
      break;
  }
  return Checked(algorithm, Handle(key, EVP_PKEY_free));
}

bool TokenKey::Verifies(std::string_view message, std::string_view signature) const {
  const std::string der =
      algorithm_ == TokenAlgorithm::kES256 ? ToDer(signature) : std::string(signature);
  const Owned<EVP_MD_CTX, EVP_MD_CTX_free> context(EVP_MD_CTX_new());
  const EVP_MD* const digest = algorithm_ == TokenAlgorithm::kEdDSA ? nullptr : EVP_sha256();
  // RSA signatures are PKCS #1 v1.5, OpenSSL's default.
  const bool verified =
      context && !der.empty() &&
      EVP_DigestVerifyInit(context.get(), nullptr, digest, nullptr, key_.get()) == 1 &&
      EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(der.data()),
                       der.size(), reinterpret_cast<const unsigned char*>(message.data()),
                       message.size()) == 1;
  if (!verified) ERR_clear_error();
  return verified;
}

}  // namespace eta
