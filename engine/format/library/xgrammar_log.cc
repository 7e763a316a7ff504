// Compiled with the library, which asks for these functions where XGRAMMAR_LOG_CUSTOMIZE is 1.
#include "engine/format/library/xgrammar_log.h"

#include <stdexcept>
#include <string>
#include <string_view>

namespace eta {
namespace {

thread_local XgrammarWarnings* warnings = nullptr;

// Of "Check failed: (code of the library) is false: reason" the reason.
std::string WithoutCode(const std::string& message) {
  constexpr std::string_view kEnd = ") is false: ";
  const size_t end = message.find(kEnd);
  if (message.rfind("Check failed: (", 0) != 0 || end == std::string::npos) return message;
  return message.substr(end + kEnd.size());
}

}  // namespace

XgrammarWarnings::XgrammarWarnings() {
  warnings = this;
}

XgrammarWarnings::~XgrammarWarnings() {
  warnings = nullptr;
}

void XgrammarWarnings::Add(const std::string& file, const std::string& message) {
  if (first_.empty() && file.find("json_schema_converter") == std::string::npos) first_ = message;
}

}  // namespace eta

namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message);
void LogMessageImpl(const std::string& file, int, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(eta::WithoutCode(message));
}

void LogMessageImpl(const std::string& file, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level == kWarning && eta::warnings != nullptr) eta::warnings->Add(file, message);
}

}  // namespace xgrammar
