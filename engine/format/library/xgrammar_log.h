// What xgrammar says beside its results, of the thread that calls it. It leaves out what it cannot
// enforce and only warns; here a warning can become an error.
#pragma once

#include <string>

namespace eta {

// While it lives the first warning of this thread is kept. Not nested.
class XgrammarWarnings {
 public:
  XgrammarWarnings();
  ~XgrammarWarnings();
  XgrammarWarnings(const XgrammarWarnings&) = delete;
  XgrammarWarnings& operator=(const XgrammarWarnings&) = delete;

  // But for those of JSON schemas, whose keywords are checked before: empty if there is none.
  const std::string& first() const { return first_; }
  void Add(const std::string& file, const std::string& message);

 private:
  std::string first_;
};

}  // namespace eta
