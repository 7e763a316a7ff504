// The command line of eta-server, its environment variables and its configuration file.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "calibration/profiles/profile_store.h"
#include "engine/format/helper/format_helper.h"
#include "engine/front/engine.h"
#include "service/log/log.h"
#include "service/options/server_options.h"
#include "service/process/process_hardening.h"
#include "service/telemetry/telemetry_options.h"

namespace eta {

struct Flags {
  EngineOptions engine;
  FormatHelperOptions format_helper;
  std::string chat_template;  // a file, which becomes engine.chat_template; empty: none
  ServerOptions server;
  std::string profile_store;       // as OpenProfileStore reads it; empty: none
  std::string profile_store_file;  // a file with profile_store in one line; empty: none
  // profile_store has a password, and was given where other users of the host may see it.
  bool shows_password = false;
  ProfileStoreOptions profile_store_options;
  std::string tenants;  // file of the tenants' limits; empty: none
  TelemetryOptions telemetry;
  LogOptions log{.fd = 2};  // standard error
  ProcessOptions process;
  int Gpus() const {
    return engine.backend.name == "cuda" ? static_cast<int>(engine.devices.size()) : 0;
  }
  // The GPU driver compiles kernels when it first loads them.
  bool GeneratesCode() const { return Gpus() > 0; }

  // The settings given on the command line, in the file or in the environment, without passwords.
  std::map<std::string, std::string> given;
};

// The result of the command line: flags to run with, or an exit code after help, version, the
// effective configuration or a one-line error was printed.
struct ParsedFlags {
  std::optional<Flags> flags;
  int exit_code = 0;
};

inline constexpr int kExitBadStart = 2;  // flags, model or profile store cannot be used

ParsedFlags ParseFlags(int argc, char** argv);

// Reads profile_store from profile_store_file, if that is set. It is separate from ParseFlags, so
// that a process can first give up the rights that the flags name. Errors name the flag.
absl::Status ReadSecrets(Flags& flags);

// Reads engine.chat_template from the file chat_template, if that is set. Errors name the flag.
absl::Status ReadChatTemplate(Flags& flags);

}  // namespace eta
