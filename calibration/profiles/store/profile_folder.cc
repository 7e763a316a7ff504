// lint: untrusted-input
#include "calibration/profiles/store/profile_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "calibration/profiles/profile_blob.h"
#include "calibration/profiles/profile_json.h"
#include "calibration/profiles/store/store_error.h"
#include "engine/base/error.h"
#include "engine/base/files/input_file.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFiles = 10'000;
constexpr uint64_t kMaxBytes = uint64_t{256} << 20;
constexpr size_t kMaxAliasBytes = size_t{1} << 20;
constexpr char kAliasFile[] = "aliases.json";

struct Found {
  std::string tenant;
  std::string path;
};

// The entries that do not begin with a dot, sorted by name.
absl::StatusOr<std::vector<std::string>> Entries(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.front() != '.') names.push_back(name);
    if (names.size() > kMaxFiles) return OverProfileQuota("files in a folder", kMaxFiles);
  }
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) {
    return absl::NotFoundError("profile_store: there is no such folder");
  }
  if (error) return StoreUnavailable("its folder cannot be read");
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::vector<Found>> Files(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> tenants, Entries(path));
  std::vector<Found> files;
  for (const std::string& tenant : tenants) {
    const std::string folder = absl::StrCat(path, "/", tenant);
    std::error_code error;
    if (!fs::is_directory(folder, error)) continue;
    ASSIGN_OR_RETURN(const std::vector<std::string> names, Entries(folder));
    for (const std::string& name : names) {
      if (absl::EndsWith(name, ".json")) files.push_back({tenant, absl::StrCat(folder, "/", name)});
      if (files.size() > kMaxFiles) return OverProfileQuota("files in a folder", kMaxFiles);
    }
  }
  return files;
}

absl::Status InFile(const Found& file, const absl::Status& status) {
  const std::string where = Quoted(file.tenant + "/" + fs::path(file.path).filename().string());
  return MakeError(status.code(), absl::StrCat(where, ": ", status.message()),
                   GetErrorDetail(status));
}

absl::StatusOr<std::string> ReadText(const Found& file, size_t max_bytes, uint64_t& total) {
  ASSIGN_OR_RETURN(const InputFile input, InputFile::Open(file.path));
  total += input.size();
  if (total > kMaxBytes) return OverProfileQuota("bytes in a folder", kMaxBytes);
  return input.ReadAll(max_bytes);
}

absl::Status AddProfile(const Tenant& tenant, const Found& file, std::string_view text,
                        FolderProfiles& profiles) {
  absl::StatusOr<PortableProfile> read = ProfileFromJson(text);
  const absl::Status fault = read.status();
  const bool other_schema = HasReason(fault, "PROFILE_SCHEMA_MISMATCH");
  if (other_schema) read = HeaderFromJson(text);
  if (!read.ok()) return read.status();
  auto record =
      std::make_shared<ProfileRecord>(ProfileRecord{.tenant = tenant,
                                                    .name = read->name,
                                                    .version = read->version,
                                                    .create_time_us = read->create_time_us,
                                                    .request_id = "",
                                                    .payload_digest = "",
                                                    .content = std::move(read->content),
                                                    .checksum = ""});
  FolderProfile& profile = profiles[tenant][record->name];
  if (other_schema) {
    ASSIGN_OR_RETURN(record->checksum, Sha256Hex(text));
    profile.refused.emplace(record->version, InFile(file, fault));
  } else if (const auto blob = EncodeProfile(*record); !blob.ok()) {
    return blob.status();
  }
  if (!profile.versions.emplace(record->version, record).second) {
    return InvalidField("version", "another file holds the same name and version");
  }
  return absl::OkStatus();
}

// What an alias names: a version, or a list of versions for different models.
absl::Status AddAlias(const std::string& field, const nlohmann::json& value,
                      const std::string& alias, FolderProfile& profile) {
  const bool several = value.is_array();
  const size_t count = several ? value.size() : 1;
  if (count == 0) return InvalidField(field, "names no version");
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& number = several ? value[i] : value;
    if (!number.is_number_integer()) {
      return InvalidField(field, "must be a version or a list of versions");
    }
    const auto version = profile.versions.find(number.get<int64_t>());
    if (version == profile.versions.end()) {
      return InvalidField(field, "names a version that is not in this folder");
    }
    const std::string& model = version->second->content.model_fingerprint;
    if (!profile.aliases[alias].emplace(model, version->first).second) {
      return InvalidField(field, "names two versions for one model");
    }
  }
  return absl::OkStatus();
}

absl::Status AddAliases(const Tenant& tenant, std::string_view text, FolderProfiles& profiles) {
  ASSIGN_OR_RETURN(const auto json,
                   ParseStrictJson("aliases", text, kMaxAliasBytes, /*max_depth=*/3));
  std::map<std::string, FolderProfile>& names = profiles[tenant];
  for (const auto& [name, aliases] : json.root().items()) {
    const auto profile = names.find(name);
    if (profile == names.end()) return InvalidField(Quoted(name), "is not in this folder");
    if (!aliases.is_object()) return InvalidField(name, "must be an object");
    for (const auto& [alias, value] : aliases.items()) {
      RETURN_IF_ERROR(CheckProfileAlias(name + "." + Quoted(alias), alias));
      RETURN_IF_ERROR(AddAlias(name + "." + alias, value, alias, profile->second));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> FolderStamp(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<Found> files, Files(path));
  std::string stamp;
  for (const Found& file : files) {
    struct stat now = {};
    const bool there = stat(file.path.c_str(), &now) == 0;
    absl::StrAppend(&stamp, file.path, there ? " " : " gone ", now.st_dev, " ", now.st_ino, " ",
                    now.st_size, " ", now.st_mtim.tv_sec, ".", now.st_mtim.tv_nsec, " ",
                    now.st_ctim.tv_sec, ".", now.st_ctim.tv_nsec, "\n");
  }
  return stamp;
}

absl::StatusOr<FolderProfiles> ReadProfileFolder(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<Found> files, Files(path));
  FolderProfiles profiles;
  uint64_t total = 0;
  // Aliases are read after the versions that they name.
  for (const bool aliases : {false, true}) {
    for (const Found& file : files) {
      if ((fs::path(file.path).filename() == kAliasFile) != aliases) continue;
      const absl::StatusOr<Tenant> tenant = Tenant::Parse(file.tenant);
      if (!tenant.ok()) return InFile(file, tenant.status());
      const size_t max_bytes = aliases ? kMaxAliasBytes : kMaxProfileJsonBytes;
      const absl::StatusOr<std::string> text = ReadText(file, max_bytes, total);
      if (!text.ok()) return InFile(file, text.status());
      const absl::Status added = aliases ? AddAliases(*tenant, *text, profiles)
                                         : AddProfile(*tenant, file, *text, profiles);
      if (!added.ok()) return InFile(file, added);
    }
  }
  return profiles;
}

}  // namespace eta
