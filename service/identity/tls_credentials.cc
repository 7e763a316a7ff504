#include "service/identity/tls_credentials.h"

#include <utility>
#include <vector>

#include "grpc/grpc_security.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace eta {
namespace {

// The material that one port was given last. gRPC asks for it before each handshake.
class PortMaterial {
 public:
  explicit PortMaterial(const TlsFiles& files) : files_(files) {}

  static grpc_ssl_certificate_config_reload_status Fetch(void* self,
                                                         grpc_ssl_server_certificate_config** out) {
    return static_cast<PortMaterial*>(self)->Fetch(out);
  }

 private:
  // Called under a lock of the port.
  grpc_ssl_certificate_config_reload_status Fetch(grpc_ssl_server_certificate_config** out) {
    std::shared_ptr<const TlsMaterial> now = files_.Current();
    if (now == given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{.private_key = now->key.c_str(),
                                          .cert_chain = now->certificates.c_str()};
    // gRPC 1.51 asserts that there are roots, also if clients need no certificate. The roots have
    // no effect then.
    const std::string& roots = files_.has_client_roots() ? now->client_roots : now->certificates;
    *out = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    given_ = std::move(now);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const TlsFiles& files_;
  std::shared_ptr<const TlsMaterial> given_;
};

// Credentials that reload safely. gRPC's own ones (TlsServerCredentials with a file watcher) throw
// away what works before they know that the new files work; a half-written key would close the
// listener. These ask TlsFiles, which hands out only what it has checked.
class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadingCredentials(const TlsFiles& files) : files_(files) {}

  // Admit finds out who calls, for plaintext and TLS alike.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    ports_.push_back(std::make_unique<PortMaterial>(files_));
    grpc_server_credentials* const credentials = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            files_.has_client_roots() ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                      : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            PortMaterial::Fetch, ports_.back().get()));
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  const TlsFiles& files_;
  std::vector<std::unique_ptr<PortMaterial>> ports_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeCredentials(const TlsFiles* files) {
  if (files == nullptr) return grpc::InsecureServerCredentials();
  return std::make_shared<ReloadingCredentials>(*files);
}

std::shared_ptr<grpc::ChannelCredentials> ProbeCredentials(const TlsFiles* files,
                                                           const OwnCertificate& own) {
  using grpc::experimental::IdentityKeyCertPair;
  if (files == nullptr) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  if (files->has_client_roots()) {
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
            std::vector<IdentityKeyCertPair>{
                {.private_key = own.key, .certificate_chain = own.certificate}}));
    options.watch_identity_key_cert_pairs();
  }
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace eta
