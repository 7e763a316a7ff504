// The built server with failpoints (kernels/system/failpoint.h) that a test arms from outside.
#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/base/temp_folder.h"
#include "tests/testing/process/environment.h"
#include "tests/testing/process/failpoint_coverage.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {

class FailpointServer {
 public:
  // Starts the server with `rules` (see ArmFailpoints).
  FailpointServer(const std::string& model, const std::string& store,
                  const std::vector<std::string>& flags = {}, const std::string& rules = "") {
    Write(rules);
    const Environment failpoints("ETA_FAILPOINTS", path());
    replica_ = std::make_unique<Replica>(model, store, flags);
  }
  ~FailpointServer() {
    replica_.reset();
    FailpointCoverage::Add(ReadFile(path() + ".struck"));
  }

  Replica& operator*() const { return *replica_; }
  Replica* operator->() const { return replica_.get(); }

  // Replaces the rules. Returns when the new ones are in force.
  void Arm(const std::string& rules) const {
    // Without rules in between, equal rules would not count anew.
    for (const std::string& text : {std::string(), rules}) {
      Write(text);
      while (ReadFile(path() + ".armed") != text && replica_->process().Running()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }
  void Disarm() const { Arm(""); }
  // True if this failpoint has acted.
  bool Struck(const std::string& name) const {
    return ("\n" + ReadFile(path() + ".struck")).find("\n" + name + " ") != std::string::npos;
  }

 private:
  std::string path() const { return folder_.path() + "/failpoints"; }
  void Write(const std::string& rules) const {
    std::rename(folder_.Write("new", rules).c_str(), path().c_str());
  }

  const TempFolder folder_{FastParent()};
  std::unique_ptr<Replica> replica_;
};

}  // namespace eta::testing
