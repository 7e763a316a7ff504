// A server that requires an identity, with keys of every role, and callers who try to get in.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "service/calls/records/audit_log.h"
#include "service/identity/api_key.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/identity/access_files.h"
#include "tests/testing/identity/certificates.h"
#include "tests/testing/identity/tenant_header.h"
#include "tests/testing/identity/token_maker.h"
#include "tests/testing/net/generic_call.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/service/service_fixture.h"

namespace eta::testing {

inline constexpr char kProxy[] = "spiffe://example.org/edge/envoy";
inline constexpr char kWeb[] = "spiffe://example.org/web";
inline constexpr char kIssuer[] = "https://login.example.org";

inline std::string KeyOfRole(Role role) {
  for (const auto& [known, name] : kRoleNames) {
    if (known == role) return absl::StrCat("key-", std::string(1, name[0]), name.size());
  }
  return "";
}

class IdentityTest : public ServiceTest {
 protected:
  IdentityTest() : folder_(FastParent()), authority_("clients"), signer_(TokenAlgorithm::kES256) {
    for (const auto& [role, name] : kRoleNames) {
      const std::string id = KeyOfRole(role);
      keys_[role] = *MakeApiKey(id);
      file_["api_keys"].push_back(KeyEntry(id, "acme", {std::string(name)}, keys_[role]));
    }
    file_["jwt"] = {{{"issuer", kIssuer},
                     {"audiences", {"eta"}},
                     {"keys", {{{"kid", "k1"}, {"algorithm", "ES256"}, {"jwk", signer_.Jwk()}}}},
                     {"tenant_claim", "tenant"},
                     {"roles", {"generate"}}}};
  }

  void SetUp() override {
    log_path_ = folder_.path() + "/log";
    log_fd_ = open(log_path_.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    own_log_.emplace(LogOptions{.level = LogLevel::kError, .fd = log_fd_});
    audit_.emplace(*own_log_);
    log_ = &*own_log_;
    call_observers_ = {&*audit_};
  }
  void TearDown() override {
    StopServing();
    own_log_.reset();
    close(log_fd_);
  }

  ServerOptions Options() const {
    ServerOptions options;
    options.identity = folder_.Write("identity.json", file_.dump());
    return options;
  }
  ServerOptions TlsOptions(bool mutual) const {
    ServerOptions options;
    WriteOwn(authority_.Issue());
    options.tls_cert = folder_.path() + "/cert.pem";
    options.tls_key = folder_.path() + "/key.pem";
    if (mutual) options.tls_client_ca = folder_.Write("ca.pem", authority_.pem());
    return options;
  }
  void WriteOwn(const MadeCertificate& made) const {
    WriteSecret(folder_, "key.pem", made.key);
    folder_.Write("cert.pem", made.certificate);
  }

  static grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                          const std::multimap<std::string, std::string>& metadata) {
    GenericCall call(channel, method);
    call.context().set_deadline(std::chrono::system_clock::now() +
                                (absl::StrContains(method, "Watch") ? std::chrono::milliseconds(200)
                                                                    : std::chrono::seconds(20)));
    for (const auto& [key, value] : metadata) call.context().AddMetadata(key, value);
    return call.Exchange("");
  }
  grpc::Status Ask(const std::string& method,
                   const std::multimap<std::string, std::string>& metadata) {
    return Ask(channel_, method, metadata);
  }
  std::multimap<std::string, std::string> By(Role role) const {
    return {{"authorization", "Bearer " + keys_.at(role)}};
  }
  static bool LetIn(const grpc::Status& status) {
    return status.error_code() != grpc::StatusCode::UNAUTHENTICATED &&
           status.error_code() != grpc::StatusCode::PERMISSION_DENIED &&
           status.error_code() != grpc::StatusCode::UNAVAILABLE &&
           status.error_code() != grpc::StatusCode::UNIMPLEMENTED;
  }
  static void ExpectUnknown(const grpc::Status& status, const std::string& what) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << what;
    EXPECT_EQ(status.error_message(), "the call's credential is missing or not valid") << what;
    EXPECT_EQ(ReasonOf(status), "CREDENTIAL_INVALID") << what;
  }

  std::shared_ptr<grpc::Channel> TlsChannel(const CertificateAuthority& root,
                                            const MadeCertificate& own = {}) const {
    const std::string address = absl::StrReplaceAll(server_->address(), {{"0.0.0.0", "127.0.0.1"}});
    return OwnConnection(address, grpc::SslCredentials({.pem_root_certs = root.pem(),
                                                        .pem_private_key = own.key,
                                                        .pem_cert_chain = own.certificate}));
  }
  std::string LogText() {
    own_log_.reset();  // the log writes what waits
    audit_.reset();
    return ReadFile(log_path_);
  }

  const TempFolder folder_;
  const CertificateAuthority authority_;
  const SigningKey signer_;
  std::map<Role, std::string> keys_;
  nlohmann::json file_;
  std::string log_path_;
  int log_fd_ = -1;
  std::optional<Log> own_log_;
  std::optional<AuditLog> audit_;
};

}  // namespace eta::testing
