#include "kernels/system/failpoint_file.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "kernels/system/failpoint.h"

namespace eta {
namespace {

constexpr std::chrono::milliseconds kPeriod{5};

std::string Contents(const std::string& path) {
  std::ostringstream contents;
  contents << std::ifstream(path).rdbuf();
  return contents.str();
}

}  // namespace

std::unique_ptr<FailpointFile> FailpointFile::FromEnvironment() {
  const char* path = std::getenv("ETA_FAILPOINTS");  // NOLINT(concurrency-mt-unsafe)
  if (path == nullptr) return nullptr;
  return std::unique_ptr<FailpointFile>(new FailpointFile(path));
}

FailpointFile::FailpointFile(std::string path) : path_(std::move(path)) {
  NameFailpointsIn(path_ + ".struck");
  Poll();
  thread_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(kPeriod);
      Poll();
    }
  });
}

FailpointFile::~FailpointFile() = default;

void FailpointFile::Poll() {
  std::string rules = Contents(path_);
  if (rules == armed_) return;
  if (!ArmFailpoints(rules)) return;
  armed_ = std::move(rules);
  const std::string written = path_ + ".armed.new";
  std::ofstream(written) << armed_;
  std::rename(written.c_str(), (path_ + ".armed").c_str());
}

}  // namespace eta
