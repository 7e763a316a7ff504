// Which server etactl talks to, and the credentials that it shows.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eta::ctl {

struct ServerFlags {
  std::string address;
  std::string tls_ca;    // file, or "system"; empty: plaintext
  std::string tls_cert;  // files with the client's own certificate and key
  std::string tls_key;
  std::string api_key_file;
  std::string token_file;
  bool allow_plaintext_credentials = false;
};

// Adds --server and its related options to `app`: they may stand before its command as well as
// behind it, where commands fall through. Parsing fills `flags`, which must outlive `app`.
void AddServerOptions(CLI::App& app, ServerFlags* flags);

// They, as a part of the help of a command.
std::string ServerOptionsHelp(const CLI::App& app);

// The flags with the contents of their files. Texts are PEM. `authorization` is the value of that
// metadata, or empty.
struct ServerAccess {
  std::string address;
  bool tls = false;
  std::string roots;  // empty: the system's roots
  std::string certificate, key;
  std::string authorization;
};

// INVALID_ARGUMENT, with a sentence for the user: a file that cannot be read or does not hold one
// line; no certificates where they are needed; an own certificate that has expired or does not fit
// the key; flags that need others; a credential that would cross a network in plaintext.
absl::StatusOr<ServerAccess> ReadServerFlags(const ServerFlags& flags);

}  // namespace eta::ctl
