#include "tests/testing/identity/token_maker.h"

#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>

#include <stdexcept>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/testing/identity/certificates.h"

namespace eta::testing {
namespace {

constexpr int kCoordinateBytes = 32;

EVP_PKEY* Generate(TokenAlgorithm algorithm, unsigned rsa_bits) {
  switch (algorithm) {
    case TokenAlgorithm::kES256:
      return EVP_EC_gen("P-256");
    case TokenAlgorithm::kRS256:
      return EVP_RSA_gen(rsa_bits);
    case TokenAlgorithm::kEdDSA:
      return EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
  }
  return nullptr;
}

std::string Number(const BIGNUM* number, int bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  BN_bn2binpad(number, reinterpret_cast<unsigned char*>(text.data()), bytes);
  return text;
}

std::string Parameter(const EVP_PKEY& key, const char* name) {
  BIGNUM* number = nullptr;
  EVP_PKEY_get_bn_param(&key, name, &number);
  const std::string text = Number(number, BN_num_bytes(number));
  BN_free(number);
  return text;
}

}  // namespace

SigningKey::SigningKey(TokenAlgorithm algorithm, unsigned rsa_bits)
    : algorithm_(algorithm), key_(Generate(algorithm, rsa_bits), EVP_PKEY_free) {
  if (key_ == nullptr) throw std::runtime_error("OpenSSL makes no key");
}

std::string SigningKey::PublicPem() const {
  return Pem([this](BIO* out) { PEM_write_bio_PUBKEY(out, key_.get()); });
}

std::string SigningKey::PrivatePem() const {
  return Pem([this](BIO* out) {
    PEM_write_bio_PrivateKey(out, key_.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

nlohmann::json SigningKey::Jwk() const {
  switch (algorithm_) {
    case TokenAlgorithm::kES256: {
      std::string x = Parameter(*key_, OSSL_PKEY_PARAM_EC_PUB_X);
      std::string y = Parameter(*key_, OSSL_PKEY_PARAM_EC_PUB_Y);
      x.insert(0, kCoordinateBytes - x.size(), '\0');
      y.insert(0, kCoordinateBytes - y.size(), '\0');
      return {{"kty", "EC"}, {"crv", "P-256"}, {"x", Base64Url(x)}, {"y", Base64Url(y)}};
    }
    case TokenAlgorithm::kRS256:
      return {{"kty", "RSA"},
              {"n", Base64Url(Parameter(*key_, OSSL_PKEY_PARAM_RSA_N))},
              {"e", Base64Url(Parameter(*key_, OSSL_PKEY_PARAM_RSA_E))}};
    case TokenAlgorithm::kEdDSA: {
      std::string x(kCoordinateBytes, '\0');
      size_t size = x.size();
      EVP_PKEY_get_raw_public_key(key_.get(), reinterpret_cast<unsigned char*>(x.data()), &size);
      return {{"kty", "OKP"}, {"crv", "Ed25519"}, {"x", Base64Url(x)}};
    }
  }
  return {};
}

std::string SigningKey::Sign(const std::string& message) const {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  const EVP_MD* const digest = algorithm_ == TokenAlgorithm::kEdDSA ? nullptr : EVP_sha256();
  EVP_DigestSignInit(context.get(), nullptr, digest, nullptr, key_.get());
  const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  size_t size = 0;
  EVP_DigestSign(context.get(), nullptr, &size, bytes, message.size());
  std::vector<unsigned char> signature(size);
  EVP_DigestSign(context.get(), signature.data(), &size, bytes, message.size());
  if (algorithm_ != TokenAlgorithm::kES256) {
    return std::string(signature.begin(), signature.begin() + static_cast<ptrdiff_t>(size));
  }
  const unsigned char* der = signature.data();
  ECDSA_SIG* const parts = d2i_ECDSA_SIG(nullptr, &der, static_cast<long>(size));
  const std::string raw = Number(ECDSA_SIG_get0_r(parts), kCoordinateBytes) +
                          Number(ECDSA_SIG_get0_s(parts), kCoordinateBytes);
  ECDSA_SIG_free(parts);
  return raw;
}

std::string Base64Url(const std::string& bytes) {
  return absl::WebSafeBase64Escape(bytes);
}

std::string HmacSha256(const std::string& key, const std::string& message) {
  std::string digest(32, '\0');
  unsigned size = 32;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(message.data()), message.size(),
       reinterpret_cast<unsigned char*>(digest.data()), &size);
  return digest;
}

std::string MakeToken(const SigningKey& key, const nlohmann::json& header,
                      const nlohmann::json& claims) {
  const std::string signed_part = Base64Url(header.dump()) + "." + Base64Url(claims.dump());
  return signed_part + "." + Base64Url(key.Sign(signed_part));
}

std::string MakeToken(const SigningKey& key, const std::string& kid, const nlohmann::json& claims) {
  const nlohmann::json header = {
      {"alg", std::string(Name(key.algorithm()))}, {"kid", kid}, {"typ", "JWT"}};
  return MakeToken(key, header, claims);
}

}  // namespace eta::testing
