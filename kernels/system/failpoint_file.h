// Failpoints of a process, armed from outside, for tests. The environment variable ETA_FAILPOINTS
// names a file of rules. It is read at the start, and again whenever another file takes its place.
// The rules in force are then written to FILE.armed, and the failpoints that acted to FILE.struck.
// In a build without failpoints this class does nothing.
#pragma once

#include <memory>
#include <string>
#include <thread>

namespace eta {

class FailpointFile {
 public:
  // Null if the environment names no file. Otherwise the rules of the file are armed on return.
  static std::unique_ptr<FailpointFile> FromEnvironment();
  ~FailpointFile();

  const std::string& path() const { return path_; }

 private:
  explicit FailpointFile(std::string path);
  void Poll();

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
