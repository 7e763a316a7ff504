// What the programs eta-eval and eta-train have in common: a command line of subcommands, and exit
// codes.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace eta {

// Adds the program's subcommands. Parsing the command line runs one, which leaves its outcome in
// `status`.
using AddCommands = std::function<void(CLI::App& app, absl::Status& status)>;

// Runs the subcommand, names an error on stderr and gives the exit code: 0 done; 1 a failed run;
// 2 bad usage or input; 3 CANCELLED.
int RunProgram(const std::string& name, const std::string& description, const AddCommands& add,
               int argc, char** argv);

}  // namespace eta
