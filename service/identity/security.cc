#include "service/identity/security.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

WatchedFiles::Report ReportTo(Log& log, std::string what) {
  return [&log, what = std::move(what)](const absl::Status& status) {
    if (status.ok()) {
      log.Write(LogEvent(LogLevel::kInfo, "reloaded", absl::StrCat(what, ": read again"))
                    .Add("file", what));
    } else {
      log.Write(LogEvent(LogLevel::kError, "reload_failed",
                         absl::StrCat("what was read before stays in effect: ",
                                      std::string(status.message())))
                    .Add("file", what));
    }
  };
}

}  // namespace

absl::StatusOr<Security> OpenSecurity(const ServerOptions& options, Log& log) {
  Security security;
  if (!options.tls_cert.empty()) {
    if (!options.tls_client_ca.empty()) {
      ASSIGN_OR_RETURN(security.own, MakeOwnCertificate());
    }
    ASSIGN_OR_RETURN(security.tls, TlsFiles::Open({.certificates = options.tls_cert,
                                                   .key = options.tls_key,
                                                   .client_roots = options.tls_client_ca},
                                                  security.own.certificate, ReportTo(log, "tls")));
  }
  ASSIGN_OR_RETURN(
      security.identity,
      Identity::Open(options.identity,
                     {.tenant_header = options.tenant_header,
                      .admin_tenants = options.admin_tenants,
                      .only_this_host = IsLocalAddress(options.listen),
                      .allow_unauthenticated = options.allow_unauthenticated_network},
                     /*has_client_ca=*/!options.tls_client_ca.empty(), ReportTo(log, "identity")));
  return security;
}

}  // namespace eta
