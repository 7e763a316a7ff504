#include "service/etactl/commands/profiles.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "eta/v1/profiles.grpc.pb.h"
#include "service/etactl/connection.h"
#include "service/etactl/error.h"
#include "service/etactl/input.h"
#include "service/etactl/json.h"
#include "service/etactl/view/profile_text.h"

namespace eta::ctl {
namespace {

constexpr int32_t kPageSize = 1000;

using Stub = v1::ProfileService::Stub;
using Summaries = std::vector<v1::ProfileSummary>;

// One call, with its deadline and its interruption.
class Call {
 public:
  Call(const ServerFlags& server, const ProfilesFlags& flags)
      : interrupt_(&context_), stub_(v1::ProfileService::NewStub(Connect(server))) {
    SetDeadline(flags.timeout_seconds, &context_);
  }
  grpc::ClientContext* context() { return &context_; }
  Stub& stub() { return *stub_; }
  bool interrupted() const { return interrupt_.happened(); }

 private:
  grpc::ClientContext context_;
  CancelOnInterrupt interrupt_;
  const std::unique_ptr<Stub> stub_;
};

int End(const ProfilesFlags& flags, const Call& call, const grpc::Status& status) {
  if (!status.ok() && call.interrupted()) return kInterrupted;
  if (!status.ok()) return Report(status, flags.json);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return kOk;
  std::fprintf(stderr, "etactl: cannot write to standard output\n");
  return kLocalError;
}

void Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

// Shows every page of a list. `fetch` asks for the page of a token, adds it, and advances the
// token.
template <typename Fetch>
int ShowList(const ServerFlags& server, const ProfilesFlags& flags, Fetch fetch,
             std::string (*table)(const Summaries&)) {
  Summaries all;
  std::string token;
  do {
    Call call(server, flags);
    const size_t before = all.size();
    const grpc::Status status = fetch(call, &token, &all);
    if (!status.ok()) return End(flags, call, status);
    for (size_t i = before; flags.json && i < all.size(); ++i) Print(JsonLine(all[i]));
    if (!flags.json && token.empty()) Print(table(all));
    if (token.empty()) return End(flags, call, status);
  } while (true);
}

int List(const ServerFlags& server, const ProfilesFlags& flags) {
  const auto fetch = [&](Call& call, std::string* token, Summaries* all) {
    v1::ListProfilesRequest request;
    request.set_page_size(kPageSize);
    request.set_page_token(*token);
    v1::ListProfilesResponse page;
    const grpc::Status status = call.stub().ListProfiles(call.context(), request, &page);
    all->insert(all->end(), page.profiles().begin(), page.profiles().end());
    *token = page.next_page_token();
    return status;
  };
  return ShowList(server, flags, fetch, ProfileTable);
}

int Versions(const ServerFlags& server, const ProfilesFlags& flags) {
  const auto fetch = [&](Call& call, std::string* token, Summaries* all) {
    v1::ListProfileVersionsRequest request;
    request.set_name(flags.name);
    request.set_page_size(kPageSize);
    request.set_page_token(*token);
    v1::ListProfileVersionsResponse page;
    const grpc::Status status = call.stub().ListProfileVersions(call.context(), request, &page);
    all->insert(all->end(), page.versions().begin(), page.versions().end());
    *token = page.next_page_token();
    return status;
  };
  return ShowList(server, flags, fetch, VersionTable);
}

int Get(const ServerFlags& server, const ProfilesFlags& flags) {
  Call call(server, flags);
  v1::GetProfileRequest request;
  request.set_profile(flags.reference);
  v1::Profile profile;
  const grpc::Status status = call.stub().GetProfile(call.context(), request, &profile);
  if (status.ok()) Print(flags.json ? JsonLine(profile) : DescribeProfile(profile));
  return End(flags, call, status);
}

int SetAlias(const ServerFlags& server, const ProfilesFlags& flags) {
  if (flags.remove == flags.version.has_value()) {
    std::fprintf(stderr, "etactl: profiles alias: give either VERSION or --remove\n");
    return kUsage;
  }
  Call call(server, flags);
  v1::SetProfileAliasRequest request;
  request.set_name(flags.name);
  request.set_alias(flags.alias);
  request.set_version(flags.version.value_or(0));
  if (flags.create_only) request.set_expected_version(0);
  if (flags.expected_version) request.set_expected_version(*flags.expected_version);
  v1::SetProfileAliasResponse response;
  const grpc::Status status = call.stub().SetProfileAlias(call.context(), request, &response);
  if (status.ok() && !flags.json) {
    Print(flags.remove ? absl::StrCat("removed ", flags.name, "@", flags.alias, "\n")
                       : absl::StrCat(flags.name, "@", flags.alias, " is ", flags.name, "@",
                                      *flags.version, "\n"));
  }
  if (status.ok() && flags.json) Print(JsonLine(response));
  return End(flags, call, status);
}

int Delete(const ServerFlags& server, const ProfilesFlags& flags) {
  Call call(server, flags);
  v1::DeleteProfileRequest request;
  request.set_name(flags.name);
  if (flags.expected_version) request.set_expected_version(*flags.expected_version);
  v1::DeleteProfileResponse response;
  const grpc::Status status = call.stub().DeleteProfile(call.context(), request, &response);
  if (status.ok()) {
    Print(flags.json ? JsonLine(response) : absl::StrCat("deleted ", flags.name, "\n"));
  }
  return End(flags, call, status);
}

int Promote(const ServerFlags& server, const ProfilesFlags& flags) {
  Call call(server, flags);
  v1::PromoteProfileRequest request;
  request.set_name(flags.name);
  request.set_version(*flags.version);
  if (flags.expected_version) request.set_expected_version(*flags.expected_version);
  v1::PromoteProfileResponse response;
  const grpc::Status status = call.stub().PromoteProfile(call.context(), request, &response);
  if (status.ok()) {
    Print(flags.json ? JsonLine(response)
                     : absl::StrCat(flags.name, "@", *flags.version, " is the newest version\n"));
  }
  return End(flags, call, status);
}

int DeleteVersion(const ServerFlags& server, const ProfilesFlags& flags) {
  Call call(server, flags);
  v1::DeleteProfileVersionRequest request;
  request.set_name(flags.name);
  request.set_version(*flags.version);
  v1::DeleteProfileVersionResponse response;
  const grpc::Status status = call.stub().DeleteProfileVersion(call.context(), request, &response);
  if (status.ok()) {
    Print(flags.json ? JsonLine(response)
                     : absl::StrCat("deleted ", flags.name, "@", *flags.version, "\n"));
  }
  return End(flags, call, status);
}

int Import(const ServerFlags& server, const ProfilesFlags& flags) {
  absl::StatusOr<std::string> json = ReadAll(flags.file);
  if (!json.ok()) {
    std::fprintf(stderr, "etactl: %s\n", std::string(json.status().message()).c_str());
    return kUsage;
  }
  Call call(server, flags);
  v1::ImportProfileRequest request;
  request.set_json(*std::move(json));
  if (flags.import_name) request.set_name(*flags.import_name);
  if (flags.create_only) request.set_expected_version(0);
  if (flags.expected_version) request.set_expected_version(*flags.expected_version);
  if (flags.request_id) request.set_request_id(*flags.request_id);
  if (flags.stage) request.set_stage(true);
  v1::Profile profile;
  const grpc::Status status = call.stub().ImportProfile(call.context(), request, &profile);
  if (status.ok()) {
    Print(flags.json ? JsonLine(profile)
                     : absl::StrCat(profile.staged() ? "staged " : "imported ", profile.name(), "@",
                                    profile.version(), "\n"));
  }
  return End(flags, call, status);
}

int Export(const ServerFlags& server, const ProfilesFlags& flags) {
  Call call(server, flags);
  v1::ExportProfileRequest request;
  request.set_profile(flags.reference);
  v1::ExportProfileResponse response;
  const grpc::Status status = call.stub().ExportProfile(call.context(), request, &response);
  if (status.ok()) Print(response.json());
  return End(flags, call, status);
}

CLI::App* AddCommand(CLI::App* profiles, ProfilesFlags* flags, const std::string& name,
                     const std::string& description) {
  CLI::App* command = profiles->add_subcommand(name, description);
  command->fallthrough();  // --timeout may follow the subcommand
  command->callback([flags, name] { flags->command = name; });
  return command;
}

void AddJson(CLI::App* command, ProfilesFlags* flags, const std::string& description) {
  command->add_flag("--json", flags->json, description);
}

void AddName(CLI::App* command, ProfilesFlags* flags) {
  command->add_option("NAME", flags->name, "The profile")->required();
}

void AddReference(CLI::App* command, ProfilesFlags* flags) {
  command
      ->add_option("PROFILE", flags->reference,
                   "NAME for its newest version, NAME@VERSION or NAME@ALIAS")
      ->required();
}

CLI::Option* AddExpectedVersion(CLI::App* command, ProfilesFlags* flags, const std::string& what) {
  return command->add_option("--expected_version", flags->expected_version,
                             "Refuse unless this is " + what);
}

void AddAlias(CLI::App* profiles, ProfilesFlags* flags) {
  CLI::App* command =
      AddCommand(profiles, flags, "alias", "Let an alias name a version, or remove it");
  AddName(command, flags);
  command->add_option("ALIAS", flags->alias, "Second name of one version, as in NAME@ALIAS")
      ->required();
  CLI::Option* version = command->add_option(
      "VERSION", flags->version, "That the alias names from now on, for the model of that version");
  CLI::Option* remove = command->add_flag("--remove", flags->remove, "Remove the alias");
  remove->excludes(version);
  CLI::Option* create =
      command->add_flag("--create_only", flags->create_only, "Refuse if the alias is taken");
  create->excludes(remove);
  AddExpectedVersion(command, flags, "the version it names now")->excludes(create);
  AddJson(command, flags, "Nothing but an empty JSON object, and errors as one");
}

CLI::Option* AddVersion(CLI::App* command, ProfilesFlags* flags, const std::string& what) {
  return command->add_option("VERSION", flags->version, what);
}

void AddPromote(CLI::App* profiles, ProfilesFlags* flags) {
  CLI::App* command =
      AddCommand(profiles, flags, "promote", "Make a staged version the newest of its model");
  AddName(command, flags);
  AddVersion(command, flags, "The staged version")->required();
  AddExpectedVersion(command, flags, "the newest version of that model; 0: it has none");
  AddJson(command, flags, "Nothing but an empty JSON object, and errors as one");
}

void AddDeletions(CLI::App* profiles, ProfilesFlags* flags) {
  const std::string json = "Nothing but an empty JSON object, and errors as one";
  CLI::App* all = AddCommand(profiles, flags, "delete",
                             "Remove a profile with all versions, of every model, and aliases");
  AddName(all, flags);
  AddExpectedVersion(all, flags, "the highest version");
  AddJson(all, flags, json);
  CLI::App* one =
      AddCommand(profiles, flags, "delete-version", "Remove one version, unless an alias names it");
  AddName(one, flags);
  AddVersion(one, flags, "The version to remove")->required();
  AddJson(one, flags, json);
}

void AddImport(CLI::App* profiles, ProfilesFlags* flags) {
  CLI::App* command =
      AddCommand(profiles, flags, "import", "Store a profile from a file as a new version");
  command->add_option("FILE", flags->file, "As `export` writes it; - reads standard input")
      ->required();
  command->add_option("--name", flags->import_name, "Default: the name in the file");
  CLI::Option* create =
      command->add_flag("--create_only", flags->create_only, "Refuse if the name is taken");
  AddExpectedVersion(command, flags, "the newest version")->excludes(create);
  command->add_option(
      "--request_id", flags->request_id,
      "Your key for this call: repeated with the same file it stores nothing twice");
  command->add_flag("--stage", flags->stage,
                    "Store the version, but do not make it the newest: `profiles promote` does");
  AddJson(command, flags, "The stored profile as one JSON object");
}

}  // namespace

CLI::App* AddProfilesCommand(CLI::App& app, ProfilesFlags* flags) {
  CLI::App* profiles = app.add_subcommand("profiles", "Work with stored profiles");
  profiles->require_subcommand(1);
  profiles->add_option("--timeout", flags->timeout_seconds, "Seconds to wait for each answer")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  AddJson(AddCommand(profiles, flags, "list", "Every profile with its newest version"), flags,
          "One JSON object per profile");
  CLI::App* versions =
      AddCommand(profiles, flags, "versions", "Versions of a profile, newest first");
  AddName(versions, flags);
  AddJson(versions, flags, "One JSON object per version");
  CLI::App* get = AddCommand(profiles, flags, "get", "What a profile is and what was measured");
  AddReference(get, flags);
  AddJson(get, flags, "The profile as one JSON object, thresholds included");
  AddAlias(profiles, flags);
  AddPromote(profiles, flags);
  AddDeletions(profiles, flags);
  AddImport(profiles, flags);
  AddReference(AddCommand(profiles, flags, "export", "Write a profile file to standard output"),
               flags);
  return profiles;
}

int RunProfiles(const ServerFlags& server, const ProfilesFlags& flags) {
  static const std::map<std::string, int (*)(const ServerFlags&, const ProfilesFlags&)> kCommands =
      {
          {"list", List},      {"versions", Versions}, {"get", Get},
          {"alias", SetAlias}, {"promote", Promote},   {"delete-version", DeleteVersion},
          {"delete", Delete},  {"import", Import},     {"export", Export},
      };
  return kCommands.at(flags.command)(server, flags);
}

}  // namespace eta::ctl
