// What the programs eta-eval and eta-train have in common: a command line of subcommands, and exit
// codes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace eta {

// Adds the program's subcommands. Parsing the command line runs one, which leaves its outcome in
// `status`.
using AddCommands = std::function<void(CLI::App& app, absl::Status& status)>;

// Adds a subcommand that a Command runs: Register adds its flags, Run does the work.
template <typename Command>
CLI::App* AddCommand(CLI::App& app, absl::Status& status, const std::string& name,
                     const std::string& help) {
  CLI::App* added = app.add_subcommand(name, help);
  auto command = std::make_shared<Command>();
  command->Register(*added);
  added->callback([command, &status] { status = command->Run(); });
  return added;
}

// The outcome of a run that did all it had to do, where what it made or measured does not keep what
// was asked of it.
absl::Status NotAsAsked(const std::string& message);

// Runs the subcommand, names an error on stderr and gives the exit code: 0 done; 1 a failed run;
// 2 bad usage or input; 3 CANCELLED; 4 NotAsAsked.
int RunProgram(const std::string& name, const std::string& description, const AddCommands& add,
               int argc, char** argv);

}  // namespace eta
