// The server's certificate, its key and the roots of its clients' certificates. They are read from
// files, checked as a whole, and read again when they change. New contents that do not fit
// together, have expired or are not valid yet leave the old ones in effect, and are tried again.
// Thread-safe.
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
  std::string certificates;  // the server's own first, then the chain to its root
  std::string key;           // its key, not encrypted
  std::string client_roots;  // empty: clients need no certificates
};

// True if a PEM holds certificates and all of them can be read.
bool HoldsCertificates(const std::string& pem);

// INVALID_ARGUMENT, naming the flag, for unusable material: no certificate or key in it; a key of
// another certificate; a certificate that is too weak (below OpenSSL's security level 2), has
// expired or is not valid yet.
absl::Status CheckTlsMaterial(const TlsMaterial& material,
                              std::chrono::system_clock::time_point now);

struct TlsPaths {
  std::string certificates;
  std::string key;
  std::string client_roots;  // empty: clients need no certificates
};

class TlsFiles {
 public:
  // `extra_client_root`, a PEM, is added to the roots of clients if there are any. `report` is told
  // of reloads (WatchedFiles).
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
