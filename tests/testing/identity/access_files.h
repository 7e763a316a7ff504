// What gives access, as tests write it: secret files and the keys of --identity.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "nlohmann/json.hpp"
#include "service/identity/api_key.h"
#include "tests/testing/base/temp_folder.h"

namespace eta::testing {

// Writes a file that only its owner may read. Returns its path.
inline std::string WriteSecret(const TempFolder& folder, const std::string& name,
                               std::string_view text) {
  std::string path = folder.Write(name, text);
  chmod(path.c_str(), 0600);
  return path;
}

// The entry of `api_keys` for `key`.
inline nlohmann::json KeyEntry(const std::string& id, const std::string& tenant,
                               const nlohmann::json& roles, const std::string& key) {
  return {{"id", id},
          {"tenant", tenant},
          {"roles", roles},
          {"sha256", absl::BytesToHexString(ApiKeyDigest(key))}};
}

}  // namespace eta::testing
