// The server's certificate, its key and the roots of its clients' certificates: read from files,
// checked as a whole, and read again when they change. What does not fit together, has expired or
// is not valid yet leaves in effect what was there before, and is tried again. Thread-safe.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/base/threads/watched_files.h"

namespace eta {

// As PEM.
struct TlsMaterial {
  std::string certificates;  // the server's own first, then what leads to its root
  std::string key;           // its, not encrypted
  std::string client_roots;  // empty: clients need no certificates
};

// Whether a PEM holds certificates, all of which can be read.
bool HoldsCertificates(const std::string& pem);

// INVALID_ARGUMENT, naming the flag, for what cannot be used: no certificate or key in it, a
// key that is another's, one of the certificates that is too weak (as OpenSSL's security level 2
// has it), a certificate that has expired or is not valid yet.
absl::Status CheckTlsMaterial(const TlsMaterial& material,
                              std::chrono::system_clock::time_point now);

struct TlsPaths {
  std::string certificates;
  std::string key;
  std::string client_roots;  // empty: clients need no certificates
};

class TlsFiles {
 public:
  // `extra_client_root`, a PEM, joins the roots of clients if there are any. `report` hears of
  // reloads (WatchedFiles).
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Open(const TlsPaths& paths,
                                                        std::string extra_client_root,
                                                        WatchedFiles::Report report);

  // Never null. Another object after each reload.
  std::shared_ptr<const TlsMaterial> Current() const;
  bool has_client_roots() const { return has_client_roots_; }
  WatchedFiles& file() const { return *watched_; }

 private:
  TlsFiles(bool has_client_roots, std::string extra_client_root)
      : has_client_roots_(has_client_roots), extra_client_root_(std::move(extra_client_root)) {}
  absl::Status Apply(const std::vector<std::string>& contents);

  const bool has_client_roots_;
  const std::string extra_client_root_;
  mutable Mutex mutex_;
  std::shared_ptr<const TlsMaterial> current_ GUARDED_BY(mutex_);
  std::unique_ptr<WatchedFiles> watched_;  // last: its thread uses the others
};

}  // namespace eta
