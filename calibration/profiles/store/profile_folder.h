// A folder of JSON profiles, read as a whole (profile_format.md, "A folder of profiles").
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "calibration/profiles/profile_record.h"

namespace eta {

struct FolderProfile {
  std::map<int64_t, ProfilePtr> versions;  // at least one
  // Profiles of another schema, each with its error: PROFILE_SCHEMA_MISMATCH, naming the file. Of
  // their content the model alone is known.
  std::map<int64_t, absl::Status> refused;
  // Each names one of the versions for each of the models that it names.
  std::map<std::string, std::map<std::string, int64_t>> aliases;  // by alias, then by fingerprint
};
// Profiles by tenant, then by name.
using FolderProfiles = std::map<Tenant, std::map<std::string, FolderProfile>>;

// A text of names, inodes, sizes and times, which differs whenever the files do. NOT_FOUND if there
// is no folder.
absl::StatusOr<std::string> FolderStamp(const std::string& path);

// INVALID_ARGUMENT, naming file and field, if any file is bad. One of another schema is not: a
// fleet changes from one to the next with the files of both in its folder. RESOURCE_EXHAUSTED for
// more than 10,000 files or 256 MiB.
absl::StatusOr<FolderProfiles> ReadProfileFolder(const std::string& path);

}  // namespace eta
