#include "service/etactl/server.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "service/etactl/input.h"
#include "service/identity/tls_files.h"

namespace eta::ctl {
namespace {

constexpr char kSystemRoots[] = "system";
constexpr char kServerOptions[] = "Server";  // a group of options

// True if plaintext to the address does not leave this host.
bool IsLocal(std::string address) {
  for (const char* const scheme : {"dns:///", "dns:", "ipv4:", "ipv6:"}) {
    if (absl::StartsWith(address, scheme)) {
      address = address.substr(std::string(scheme).size());
      break;
    }
  }
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "localhost:") ||
         address == "localhost" || absl::StartsWith(address, "127.") ||
         absl::StartsWith(address, "[::1]");
}

absl::StatusOr<std::string> ReadLine(const std::string& file) {
  ASSIGN_OR_RETURN(auto text, ReadAll(file));
  const std::string line(absl::StripAsciiWhitespace(text));
  if (line.empty() || line.find_first_of(" \t\r\n") != std::string::npos) {
    return absl::InvalidArgumentError(file + " must hold one word: a key or a token");
  }
  return line;
}

}  // namespace

void AddServerOptions(CLI::App& app, ServerFlags* flags) {
  flags->address = "localhost:8471";
  app.add_option("--server", flags->address,
                 "HOST:PORT or unix:PATH; default $ETA_SERVER, else localhost:8471")
      ->envname("ETA_SERVER")
      ->group(kServerOptions);
  app.add_option("--tls_ca", flags->tls_ca,
                 "Use TLS, and accept servers with a certificate of these roots: a PEM file, or "
                 "`system`; default $ETA_TLS_CA")
      ->envname("ETA_TLS_CA")
      ->group(kServerOptions);
  CLI::Option* const cert =
      app.add_option("--tls_cert", flags->tls_cert, "Own certificate, for mutual TLS (PEM)")
          ->group(kServerOptions);
  CLI::Option* const key =
      app.add_option("--tls_key", flags->tls_key, "Its key (PEM)")->group(kServerOptions);
  cert->needs(key);
  key->needs(cert);
  CLI::Option* const api_key =
      app.add_option("--api_key_file", flags->api_key_file,
                     "File that holds an API key; default $ETA_API_KEY_FILE")
          ->envname("ETA_API_KEY_FILE")
          ->group(kServerOptions);
  app.add_option("--token_file", flags->token_file,
                 "File that holds a token (JWT); default $ETA_TOKEN_FILE")
      ->envname("ETA_TOKEN_FILE")
      ->excludes(api_key)
      ->group(kServerOptions);
  app.add_flag("--allow_plaintext_credentials", flags->allow_plaintext_credentials,
               "Send a key or a token without TLS beyond this host too, where a mesh encrypts")
      ->group(kServerOptions);
}

std::string ServerOptionsHelp(const CLI::App& app) {
  return CLI::Formatter().make_group(
      absl::StrCat(kServerOptions, ", before the command or behind it"), /*is_positional=*/false,
      app.get_options(
          [](const CLI::Option* option) { return option->get_group() == kServerOptions; }));
}

absl::StatusOr<ServerAccess> ReadServerFlags(const ServerFlags& flags) {
  ServerAccess access{.address = flags.address, .tls = !flags.tls_ca.empty()};
  if (access.tls && flags.tls_ca != kSystemRoots) {
    ASSIGN_OR_RETURN(auto roots, ReadAll(flags.tls_ca));
    if (!HoldsCertificates(roots)) {
      return absl::InvalidArgumentError("--tls_ca: holds no certificates in PEM");
    }
    access.roots = std::move(roots);
  }
  if (!flags.tls_cert.empty()) {
    if (!access.tls) return absl::InvalidArgumentError("--tls_cert needs --tls_ca");
    ASSIGN_OR_RETURN(auto certificate, ReadAll(flags.tls_cert));
    ASSIGN_OR_RETURN(auto key, ReadAll(flags.tls_key));
    TlsMaterial own{.certificates = std::move(certificate), .key = std::move(key)};
    RETURN_IF_ERROR(CheckTlsMaterial(own, std::chrono::system_clock::now()));
    access.certificate = std::move(own.certificates);
    access.key = std::move(own.key);
  }
  const std::string& file = flags.api_key_file.empty() ? flags.token_file : flags.api_key_file;
  if (file.empty()) return access;
  if (!access.tls && !flags.allow_plaintext_credentials && !IsLocal(flags.address)) {
    return absl::InvalidArgumentError(
        "a key or a token would cross the network in plaintext: give --tls_ca, or "
        "--allow_plaintext_credentials where a mesh encrypts");
  }
  ASSIGN_OR_RETURN(auto word, ReadLine(file));
  access.authorization = "Bearer " + word;
  return access;
}

}  // namespace eta::ctl
