// A certificate that the process makes for itself at the start and keeps in memory. Its own probe
// shows it to listeners that demand certificates. It stands for nobody: it has no SPIFFE id.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace eta {

// As PEM.
struct OwnCertificate {
  std::string certificate;  // self-signed, so it is its own root
  std::string key;
};

// INTERNAL if OpenSSL fails.
absl::StatusOr<OwnCertificate> MakeOwnCertificate();

}  // namespace eta
