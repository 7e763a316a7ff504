#include "service/log/log_event.h"

#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

std::string Cut(const std::string& text) {
  return text.substr(0, LogEvent::kMaxValueBytes);
}

Json ToJson(const LogEvent::Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return Cut(*text);
  if (const auto* map = std::get_if<LogEvent::Map>(&value)) {
    Json object = Json::object();
    for (const auto& [key, text] : *map) object[Cut(key)] = Cut(text);
    return object;
  }
  return std::visit(
      [](const auto& plain) -> Json {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(plain)>>) return plain;
        return nullptr;
      },
      value);
}

bool IsPlain(std::string_view text) {
  return text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
             "_.:/@+-") == std::string_view::npos;
}

}  // namespace

std::string_view Name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "";
}

std::string LogEvent::Line(LogFormat format) const {
  return format == LogFormat::kJson ? Json() : Text();
}

std::string LogEvent::Json() const {
  constexpr std::string_view kTruncated = ",\"truncated\":true";
  std::string line;
  const auto member = [](std::string_view key, const Value& value) {
    return absl::StrCat(",", Dump(key), ":", Dump(ToJson(value)));
  };
  const std::string time =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromChrono(time_), absl::UTCTimeZone());
  line = member("time", time) + member("level", std::string(Name(level_))) + member("event", name_);
  if (!message_.empty()) line += member("message", message_);
  line.front() = '{';
  for (const auto& [key, value] : fields_) {
    const std::string field = member(key, value);
    if (line.size() + field.size() + kTruncated.size() + 1 > kMaxLineBytes) {
      line += kTruncated;
      break;
    }
    line += field;
  }
  return line + "}";
}

std::string LogEvent::Text() const {
  std::string line = "eta-server: ";
  if (level_ >= LogLevel::kWarning) absl::StrAppend(&line, std::string(Name(level_)), ": ");
  if (!message_.empty()) {
    // The escaped form of a string, without its quotes and with plain quotes inside.
    const std::string escaped = Dump(Cut(message_));
    for (size_t i = 1; i + 1 < escaped.size(); ++i) {
      if (escaped[i] == '\\' && (escaped[i + 1] == '"' || escaped[i + 1] == '\\')) ++i;
      line += escaped[i];
    }
    return line;
  }
  line += name_;
  for (const auto& [key, value] : fields_) {
    const auto* text = std::get_if<std::string>(&value);
    const std::string shown = text != nullptr && IsPlain(*text) && text->size() <= kMaxValueBytes
                                  ? *text
                                  : Dump(ToJson(value));
    const std::string field = absl::StrCat(" ", key, "=", shown);
    if (line.size() + field.size() > kMaxLineBytes) break;
    line += field;
  }
  return line;
}

}  // namespace eta
