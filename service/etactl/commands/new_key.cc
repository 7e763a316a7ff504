#include "service/etactl/commands/new_key.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "absl/strings/escaping.h"
#include "nlohmann/json.hpp"
#include "service/etactl/error.h"
#include "service/identity/api_key.h"
#include "service/identity/identity_file.h"

namespace eta::ctl {
namespace {

int Fail(const std::string& why, int code) {
  std::fprintf(stderr, "etactl: %s\n", why.c_str());
  return code;
}

// Writes a new file that nobody else may read.
bool WriteSecret(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const bool written =
      write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  return close(fd) == 0 && written;
}

}  // namespace

CLI::App* AddNewKeyCommand(CLI::App& app, NewKeyFlags* flags) {
  CLI::App* command = app.add_subcommand(
      "new-key", "Draw an API key: the key once, and its entry for a server's --identity file");
  command->add_option("ID", flags->id, "Which key it is, as in acme-1: 1 to 64 of a-z 0-9 -")
      ->required();
  command->add_option("--tenant", flags->tenant, "Whose calls it makes")->required();
  command
      ->add_option("--roles", flags->roles,
                   "What it may do, as in generate,stats: of generate, calibrate, stats, "
                   "stats_all, admin, route")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--expires", flags->expires, "When it ends, as in 2027-01-31T00:00:00Z");
  command->add_option("--key_file", flags->key_file,
                      "Write the key into this new file, for its owner only, instead of printing "
                      "it");
  return command;
}

int RunNewKey(const NewKeyFlags& flags) {
  const auto key = MakeApiKey(flags.id);
  if (!key.ok()) return Fail(std::string(key.status().message()), kUsage);
  nlohmann::ordered_json entry = {{"id", flags.id},
                                  {"tenant", flags.tenant},
                                  {"roles", flags.roles},
                                  {"sha256", absl::BytesToHexString(ApiKeyDigest(*key))}};
  if (!flags.expires.empty()) entry["expires"] = flags.expires;
  // A key that a server would refuse is not handed out.
  const nlohmann::ordered_json file = {{"api_keys", {entry}}};
  const auto read =
      ParseIdentityFile(file.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  if (!read.ok()) return Fail(std::string(read.status().message()), kUsage);
  if (!flags.key_file.empty() && !WriteSecret(flags.key_file, *key + "\n")) {
    return Fail("the key's file cannot be written, or is there already", kLocalError);
  }
  if (flags.key_file.empty()) std::printf("%s\n", key->c_str());
  std::printf("%s\n", entry.dump().c_str());
  if (std::fflush(stdout) != 0) return Fail("cannot write to standard output", kLocalError);
  return kOk;
}

}  // namespace eta::ctl
