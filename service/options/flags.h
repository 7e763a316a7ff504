// The command line of eta-server, its environment variables and its configuration file.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "calibration/profiles/profile_store.h"
#include "engine/engine.h"
#include "service/log/log.h"
#include "service/options/server_options.h"
#include "service/process/process_hardening.h"
#include "service/telemetry/telemetry_options.h"

namespace eta {

struct Flags {
  EngineOptions engine;
  ServerOptions server;
  std::string profile_store;       // as OpenProfileStore takes it; empty: none
  std::string profile_store_file;  // holds profile_store as its line; empty: none
  bool shows_password = false;  // profile_store has one, and came by the command line or the like
  ProfileStoreOptions profile_store_options;
  std::string tenants;  // file of their limits; empty: none
  TelemetryOptions telemetry;
  LogOptions log{.fd = 2};  // standard error
  ProcessOptions process;
  int Gpus() const {
    return engine.backend.name == "cuda" ? static_cast<int>(engine.devices.size()) : 0;
  }
  // The driver of GPUs compiles kernels when it first loads them.
  bool GeneratesCode() const { return Gpus() > 0; }

  // What was said on the command line, in the file or in the environment, without passwords.
  std::map<std::string, std::string> given;
};

// What the command line asks for: flags to run with, or an exit code after help, version, the
// effective configuration or a one-line error was printed.
struct ParsedFlags {
  std::optional<Flags> flags;
  int exit_code = 0;
};

inline constexpr int kExitBadStart = 2;  // flags, model or profile store unusable

ParsedFlags ParseFlags(int argc, char** argv);

// Takes profile_store from profile_store_file, if that is set. Apart from ParseFlags, so that a
// process can first give up what the flags say. Errors name the flag.
absl::Status ReadSecrets(Flags& flags);

}  // namespace eta
