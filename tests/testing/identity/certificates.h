// Certificates for tests: an authority, and the certificates that it signs.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace eta::testing {

// What `write` writes to a BIO.
template <typename Write>
std::string Pem(const Write& write) {
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> text(BIO_new(BIO_s_mem()), BIO_free_all);
  write(text.get());
  char* data = nullptr;
  const long size = BIO_get_mem_data(text.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

// As PEM.
struct MadeCertificate {
  std::string certificate;
  std::string key;
};

struct CertificateWish {
  std::string name = "localhost";  // also its DNS name, beside the address 127.0.0.1
  std::string uri;                 // SPIFFE id; empty: none
  int days = 1;                    // from now; negative: expired
  int begins = -10;                // in days from now; positive: not valid yet
  unsigned rsa_bits = 0;           // bits of an RSA key; 0: a key of P-256
};

class CertificateAuthority {
 public:
  explicit CertificateAuthority(const std::string& name);

  const std::string& pem() const { return pem_; }
  MadeCertificate Issue(const CertificateWish& wish = {}) const;

 private:
  std::shared_ptr<EVP_PKEY> key_;
  std::shared_ptr<X509> certificate_;
  std::string pem_;
};

}  // namespace eta::testing
