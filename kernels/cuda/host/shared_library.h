// Functions of a shared library that is loaded while the program runs: a program must also start on
// machines that lack the library.
#pragma once

#include <dlfcn.h>

#include <span>
#include <string>

namespace eta::cuda {

class SharedLibrary {
 public:
  // The first of `files` that the loader finds; it stays loaded.
  explicit SharedLibrary(std::span<const char* const> files) {
    for (const char* file : files) {
      library_ = dlopen(file, RTLD_NOW | RTLD_LOCAL);
      if (library_ != nullptr) return;
    }
  }

  bool found() const { return library_ != nullptr; }

  // REQUIRES: found(). Sets a pointer to the function; null if the library has none.
  template <typename Function>
  void Find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) missing_ = name;
  }
  // The last function that was not found; empty: none.
  const std::string& missing() const { return missing_; }

 private:
  void* library_ = nullptr;
  std::string missing_;
};

}  // namespace eta::cuda
