// What guards a server's listener: its TLS and who may call, as the options say.
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
  OwnCertificate own;             // of the server's own probe, where clients must show one
  std::unique_ptr<Identity> identity;
};

// Reads the files; `log`, which must outlive it, hears of their reloads. INVALID_ARGUMENT, naming
// the flag.
absl::StatusOr<Security> OpenSecurity(const ServerOptions& options, Log& log);

}  // namespace eta
