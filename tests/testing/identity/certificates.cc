#include "tests/testing/identity/certificates.h"

#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <cstdint>
#include <stdexcept>

namespace eta::testing {
namespace {

constexpr long kDaySeconds = 24L * 3600;

void AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  if (extension == nullptr) throw std::runtime_error("OpenSSL refuses an extension");
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

std::shared_ptr<X509> NewCertificate(EVP_PKEY* key, const CertificateWish& wish) {
  const std::shared_ptr<X509> certificate(X509_new(), X509_free);
  uint64_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial));
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), wish.begins * kDaySeconds);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), wish.days * kDaySeconds);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(wish.name.c_str()), -1, -1, 0);
  X509_set_pubkey(certificate.get(), key);
  return certificate;
}

}  // namespace

CertificateAuthority::CertificateAuthority(const std::string& name)
    : key_(EVP_EC_gen("P-256"), EVP_PKEY_free),
      certificate_(NewCertificate(key_.get(), {.name = name, .days = 2})) {
  X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
  AddExtension(certificate_.get(), certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
  X509_sign(certificate_.get(), key_.get(), EVP_sha256());
  pem_ = Pem([this](BIO* out) { PEM_write_bio_X509(out, certificate_.get()); });
}

MadeCertificate CertificateAuthority::Issue(const CertificateWish& wish) const {
  const std::shared_ptr<EVP_PKEY> key(
      wish.rsa_bits > 0 ? EVP_RSA_gen(wish.rsa_bits) : EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::shared_ptr<X509> certificate = NewCertificate(key.get(), wish);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate_.get()));
  std::string names = "DNS:" + wish.name + ",IP:127.0.0.1";
  if (!wish.uri.empty()) names += ",URI:" + wish.uri;
  AddExtension(certificate.get(), certificate_.get(), NID_subject_alt_name, names);
  X509_sign(certificate.get(), key_.get(), EVP_sha256());
  return {.certificate = Pem([&](BIO* out) { PEM_write_bio_X509(out, certificate.get()); }),
          .key = Pem([&](BIO* out) {
            PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

}  // namespace eta::testing
