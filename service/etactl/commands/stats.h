// `etactl stats`: shows the server's counts, once or live.
#pragma once

#include <optional>
#include <string>

#include "service/etactl/server.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eta::ctl {

struct StatsFlags {
  double timeout_seconds = 10.0;
  bool watch = false;
  std::optional<double> interval_seconds;
  bool layers = false;
  std::optional<std::string> tenant;
  bool json = false;
};

// Adds the subcommand to `app`; parsing it fills `flags`, which must outlive `app`.
CLI::App* AddStatsCommand(CLI::App& app, StatsFlags* flags);

// Returns the exit code of the process.
int RunStats(const ServerFlags& server, const StatsFlags& flags);

}  // namespace eta::ctl
