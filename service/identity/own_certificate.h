// A certificate that the process makes for itself when it starts, and keeps in memory: what its own
// probe shows where a listener demands certificates. It stands for nobody: no SPIFFE id is in it.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace eta {

// As PEM.
struct OwnCertificate {
  std::string certificate;  // signed by itself, so it is its own root
  std::string key;
};

// INTERNAL if OpenSSL cannot.
absl::StatusOr<OwnCertificate> MakeOwnCertificate();

}  // namespace eta
