// `etactl new-key`: draws an API key for the operator's --identity file. It does not talk to a
// server.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace eta::ctl {

struct NewKeyFlags {
  std::string id;
  std::string tenant;
  std::vector<std::string> roles = {"generate", "stats"};
  std::string expires;
  std::string key_file;  // empty: the key is printed
};

// Adds the subcommand to `app`; parsing it fills `flags`, which must outlive `app`.
CLI::App* AddNewKeyCommand(CLI::App& app, NewKeyFlags* flags);

// Returns the exit code of the process.
int RunNewKey(const NewKeyFlags& flags);

}  // namespace eta::ctl
