// lint: untrusted-input
#include "service/identity/own_certificate.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>

#include <cstdint>
#include <cstring>

#include "service/identity/openssl_owned.h"

namespace eta {
namespace {

using Memory = Owned<BIO, BIO_free_all>;

constexpr long kBackwardSeconds = 24L * 3600;  // tolerance for a clock that is set back later
constexpr long kForwardSeconds = 20L * 365 * 24 * 3600;  // longer than a process lives

std::string Content(BIO* text) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(text, &data);
  return size > 0 ? std::string(data, static_cast<size_t>(size)) : std::string();
}

}  // namespace

absl::StatusOr<OwnCertificate> MakeOwnCertificate() {
  const auto failed = [] { return absl::InternalError("OpenSSL makes no certificate"); };
  const Owned<EVP_PKEY, EVP_PKEY_free> key(EVP_EC_gen("P-256"));
  const Owned<X509, X509_free> certificate(X509_new());
  uint64_t serial = 0;
  if (!key || !certificate ||
      RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) != 1) {
    return failed();
  }
  const auto* name = reinterpret_cast<const unsigned char*>("eta-server self probe");
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  if (X509_set_version(certificate.get(), X509_VERSION_3) != 1 ||
      ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1) != 1 ||
      X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kBackwardSeconds) == nullptr ||
      X509_gmtime_adj(X509_getm_notAfter(certificate.get()), kForwardSeconds) == nullptr ||
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, name, -1, -1, 0) != 1 ||
      X509_set_issuer_name(certificate.get(), subject) != 1 ||
      X509_set_pubkey(certificate.get(), key.get()) != 1 ||
      X509_sign(certificate.get(), key.get(), EVP_sha256()) == 0) {
    return failed();
  }
  const Memory certificate_text(BIO_new(BIO_s_mem())), key_text(BIO_new(BIO_s_mem()));
  if (!certificate_text || !key_text ||
      PEM_write_bio_X509(certificate_text.get(), certificate.get()) != 1 ||
      PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) !=
          1) {
    return failed();
  }
  return OwnCertificate{.certificate = Content(certificate_text.get()),
                        .key = Content(key_text.get())};
}

}  // namespace eta
