// One event as one line: JSON for machines, or text for a terminal.
//
// Lines are ASCII. Control characters and everything beyond ASCII are escaped; bytes that are not
// UTF-8 become U+FFFD. Long values are cut, and a line that is too long loses its last fields.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace eta {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };
enum class LogFormat : uint8_t { kJson, kText };
// The order in which a log that cannot keep up drops events: the first rank first. Events of the
// other ranks are written whatever the log's level is.
enum class LogRank : uint8_t { kUsual, kAudit, kChange };

// "debug", "info", "warning", "error".
std::string_view Name(LogLevel level);

class LogEvent {
 public:
  static constexpr size_t kMaxValueBytes = 1024;
  static constexpr size_t kMaxLineBytes = 8192;  // without the end of line

  using Map = std::map<std::string, std::string>;
  using Value = std::variant<bool, int64_t, double, std::string, Map>;

  // Programs look for `name` (lower snake case). `message` is a sentence for people, and the only
  // thing that the text format shows. Without a message the text shows the name and the fields.
  LogEvent(LogLevel level, std::string_view name, std::string message = "")
      : level_(level), name_(name), message_(std::move(message)) {}

  // An empty text is left out.
  template <typename T>
  LogEvent& Add(std::string_view key, T value) {
    if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, Map>) {
      fields_.emplace_back(key, std::move(value));
    } else if constexpr (std::is_integral_v<T>) {
      fields_.emplace_back(key, static_cast<int64_t>(value));
    } else if constexpr (std::is_floating_point_v<T>) {
      fields_.emplace_back(key, static_cast<double>(value));
    } else if (std::string text(std::move(value)); !text.empty()) {
      fields_.emplace_back(key, std::move(text));
    }
    return *this;
  }

  // For events that must leave a trace: kAudit for a caller who was refused, kChange for what was
  // changed or opened up.
  LogEvent& Rank(LogRank rank) {
    rank_ = rank;
    return *this;
  }

  LogLevel level() const { return level_; }
  LogRank rank() const { return rank_; }

  // Without the end of line.
  std::string Line(LogFormat format) const;

 private:
  std::string Json() const;
  std::string Text() const;

  LogLevel level_;
  LogRank rank_ = LogRank::kUsual;
  std::chrono::system_clock::time_point time_ = std::chrono::system_clock::now();
  std::string name_;
  std::string message_;
  std::vector<std::pair<std::string, Value>> fields_;
};

}  // namespace eta
