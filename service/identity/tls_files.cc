// lint: untrusted-input
#include "service/identity/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "service/identity/openssl_owned.h"

namespace eta {
namespace {

using std::chrono::system_clock;

using Certificate = Owned<X509, X509_free>;
using PemText = Owned<BIO, BIO_free_all>;

absl::Status Wrong(const char* flag, const char* why) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", why));
}

PemText TextOf(const std::string& pem) {
  return PemText(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// Refuses to ask a terminal for a password.
int NoPassword(char*, int, int, void*) {
  return -1;
}

// All certificates in the text; none if anything between them is no certificate.
std::vector<Certificate> CertificatesIn(const std::string& pem) {
  std::vector<Certificate> found;
  const PemText text = TextOf(pem);
  if (!text) return found;
  while (Certificate next{PEM_read_bio_X509(text.get(), nullptr, NoPassword, nullptr)}) {
    found.push_back(std::move(next));
  }
  // The end of the text is reported as an error too; it is the only one that does not count.
  const bool complete = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!complete) found.clear();
  return found;
}

}  // namespace

bool HoldsCertificates(const std::string& pem) {
  return !CertificatesIn(pem).empty();
}

absl::Status CheckTlsMaterial(const TlsMaterial& material, system_clock::time_point now) {
  ERR_clear_error();
  const std::vector<Certificate> chain = CertificatesIn(material.certificates);
  if (chain.empty()) return Wrong("--tls_cert", "holds no certificates in PEM");
  const PemText key_text = TextOf(material.key);
  const Owned<EVP_PKEY, EVP_PKEY_free> key(
      PEM_read_bio_PrivateKey(key_text.get(), nullptr, NoPassword, nullptr));
  if (!key) return Wrong("--tls_key", "holds no key in PEM that is not encrypted");
  time_t second = system_clock::to_time_t(now);
  if (X509_cmp_time(X509_get0_notAfter(chain.front().get()), &second) <= 0) {
    return Wrong("--tls_cert", "the certificate has expired");
  }
  if (X509_cmp_time(X509_get0_notBefore(chain.front().get()), &second) > 0) {
    return Wrong("--tls_cert", "the certificate is not valid yet");
  }
  const Owned<SSL_CTX, SSL_CTX_free> context(SSL_CTX_new(TLS_server_method()));
  if (!context || SSL_CTX_use_certificate(context.get(), chain.front().get()) != 1) {
    return Wrong("--tls_cert", "OpenSSL refuses it; its key may be too short");
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context.get(), chain[i].get()) != 1) {
      return Wrong("--tls_cert",
                   "OpenSSL refuses a certificate after the first; its key may be too short");
    }
  }
  if (SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return Wrong("--tls_key", "is not the key of --tls_cert");
  }
  if (!material.client_roots.empty() && !HoldsCertificates(material.client_roots)) {
    return Wrong("--tls_client_ca", "holds no certificates in PEM");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Open(const TlsPaths& paths,
                                                         std::string extra_client_root,
                                                         WatchedFiles::Report report) {
  const bool has_client_roots = !paths.client_roots.empty();
  std::unique_ptr<TlsFiles> files(new TlsFiles(has_client_roots, std::move(extra_client_root)));
  WatchedFilesOptions options;
  options.files = {{.name = "--tls_cert", .path = paths.certificates},
                   {.name = "--tls_key", .path = paths.key, .secret = true}};
  if (has_client_roots) {
    options.files.push_back({.name = "--tls_client_ca", .path = paths.client_roots});
  }
  ASSIGN_OR_RETURN(files->watched_,
                   WatchedFiles::Open(
                       std::move(options),
                       [raw = files.get()](const std::vector<std::string>& contents) {
                         return raw->Apply(contents);
                       },
                       std::move(report)));
  return files;
}

absl::Status TlsFiles::Apply(const std::vector<std::string>& contents) {
  TlsMaterial material{.certificates = contents[0], .key = contents[1]};
  if (has_client_roots_) {
    if (!HoldsCertificates(contents[2])) {
      return Wrong("--tls_client_ca", "holds no certificates in PEM");
    }
    material.client_roots = absl::StrCat(contents[2], "\n", extra_client_root_);
  }
  RETURN_IF_ERROR(CheckTlsMaterial(material, system_clock::now()));
  auto taken = std::make_shared<const TlsMaterial>(std::move(material));
  const MutexLock lock(mutex_);
  current_ = std::move(taken);
  return absl::OkStatus();
}

std::shared_ptr<const TlsMaterial> TlsFiles::Current() const {
  const MutexLock lock(mutex_);
  return current_;
}

}  // namespace eta
