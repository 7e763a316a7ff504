// A folder of a test's own, removed with its contents.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace eta {

class TempFolder {
 public:
  explicit TempFolder(const std::string& parent = ::testing::TempDir()) {
    std::string pattern = parent + "eta_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }

  std::string Write(const std::string& name, std::string_view contents) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << contents;
    return path;
  }

 private:
  std::string path_;
};

// The parent folder for tests to which the disk does not matter: in memory if the machine has such
// a place.
inline std::string FastParent() {
  return access("/dev/shm", W_OK) == 0 ? "/dev/shm/" : ::testing::TempDir();
}

inline std::string ReadFile(const std::string& path) {
  std::ostringstream contents;
  contents << std::ifstream(path, std::ios::binary).rdbuf();
  return contents.str();
}

}  // namespace eta
