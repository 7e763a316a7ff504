// The guards of a server's listener, as the options say: its TLS, and who may call.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "service/identity/identity.h"
#include "service/identity/own_certificate.h"
#include "service/identity/tls_files.h"
#include "service/log/log.h"
#include "service/options/server_options.h"

namespace eta {

struct Security {
  std::unique_ptr<TlsFiles> tls;  // null: plaintext
  OwnCertificate own;             // for the server's own probe, if clients must show a certificate
  std::unique_ptr<Identity> identity;
};

// Reads the files. `log` must outlive it and gets their reloads. INVALID_ARGUMENT, naming the flag.
absl::StatusOr<Security> OpenSecurity(const ServerOptions& options, Log& log);

}  // namespace eta
