// Failpoints of a process, armed from outside: the rules of the file that the environment variable
// ETA_FAILPOINTS names, read at the start and again whenever another takes its place. What is armed
// is then written to FILE.armed, and which failpoints acted to FILE.struck. For tests; where
// failpoints are not compiled in there is nothing of this.
#pragma once

#include <memory>
#include <string>
#include <thread>

namespace eta {

class FailpointFile {
 public:
  // Null where the environment names none. The rules of the file there is now are armed.
  static std::unique_ptr<FailpointFile> FromEnvironment();
  ~FailpointFile();

  const std::string& path() const { return path_; }

 private:
  explicit FailpointFile(std::string path);
  void Look();

  const std::string path_;
  std::string armed_;
  std::jthread thread_;
};

#ifndef ETA_FAILPOINTS
inline FailpointFile::~FailpointFile() = default;
inline std::unique_ptr<FailpointFile> FailpointFile::FromEnvironment() {
  return nullptr;
}
#endif

}  // namespace eta
