// `etactl profiles`: lists, shows, names, promotes, removes, imports and exports stored profiles.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "service/etactl/server.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eta::ctl {

// The fields of all subcommands. Each reads its own.
struct ProfilesFlags {
  std::string command;  // the subcommand that was given: "list", "get", ...
  double timeout_seconds = 30.0;
  bool json = false;

  std::string reference;  // NAME, NAME@VERSION or NAME@ALIAS
  std::string name;
  std::string alias;
  std::optional<int64_t> version;  // of the name
  bool remove = false;
  std::string file;
  std::optional<std::string> import_name;
  bool create_only = false;
  std::optional<int64_t> expected_version;
  std::optional<std::string> request_id;
  bool stage = false;
};

// Adds the subcommand to `app`; parsing it fills `flags`, which must outlive `app`.
CLI::App* AddProfilesCommand(CLI::App& app, ProfilesFlags* flags);

// Returns the exit code of the process.
int RunProfiles(const ServerFlags& server, const ProfilesFlags& flags);

}  // namespace eta::ctl
