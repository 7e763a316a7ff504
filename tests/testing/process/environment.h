// Sets an environment variable, for new processes, while this object lives.
#pragma once

#include <cstdlib>
#include <string>
#include <utility>

namespace eta::testing {

class Environment {
 public:
  Environment(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  }
  ~Environment() { unsetenv(name_.c_str()); }  // NOLINT(concurrency-mt-unsafe)
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const std::string name_;
};

}  // namespace eta::testing
