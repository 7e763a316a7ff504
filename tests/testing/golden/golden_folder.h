// Where golden cases are, and which exist.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace eta::testing {

// tests/golden/`kind` of the source tree, unless the environment variable names another folder.
inline std::string GoldenFolder(const char* kind, const char* variable) {
  const char* folder = std::getenv(variable);
  return folder != nullptr ? folder : std::string(ETA_SOURCE_DIR "/tests/golden/") + kind;
}

// The sorted names of the folder's .safetensors files, without the extension. Empty if there is no
// such folder.
inline std::vector<std::string> GoldenCases(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace eta::testing
