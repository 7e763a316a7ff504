// `etactl log-level`: sets which events a running server writes to its log.
#pragma once

#include <string>

#include "service/etactl/server.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eta::ctl {

struct LogLevelFlags {
  double timeout_seconds = 30.0;
  std::string level;  // debug, info, warning or error
};

// Adds the subcommand to `app`; parsing it fills `flags`, which must outlive `app`.
CLI::App* AddLogLevelCommand(CLI::App& app, LogLevelFlags* flags);

// Returns the exit code of the process.
int RunLogLevel(const ServerFlags& server, const LogLevelFlags& flags);

}  // namespace eta::ctl
