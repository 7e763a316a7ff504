// A folder of JSON profiles read as a whole (profile_format.md, "A folder of profiles").
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "calibration/profiles/profile_record.h"

namespace eta {

struct FolderProfile {
  std::map<int64_t, ProfilePtr> versions;  // at least one
  std::map<std::string, int64_t> aliases;  // each names one of the versions
};
// By tenant, then by name.
using FolderProfiles = std::map<Tenant, std::map<std::string, FolderProfile>>;

// A text that differs whenever the files do: names, inodes, sizes and times. NOT_FOUND for no
// folder.
absl::StatusOr<std::string> FolderStamp(const std::string& path);

// INVALID_ARGUMENT, naming file and field, if any file is bad; RESOURCE_EXHAUSTED for over 10,000
// files or 256 MiB.
absl::StatusOr<FolderProfiles> ReadProfileFolder(const std::string& path);

}  // namespace eta
