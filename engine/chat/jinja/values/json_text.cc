#include "engine/chat/jinja/values/json_text.h"

#include <cmath>
#include <string_view>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/values/nested_text.h"
#include "engine/chat/jinja/values/python_text.h"
#include "engine/chat/jinja/values/text_builder.h"

namespace eta::jinja {
namespace {

void AppendUnit(char32_t unit, std::string& out) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kDigits[unit >> shift & 0xF];
}

// What stands for a character in a string; empty if it stands for itself.
std::string JsonEscape(char32_t c, bool ascii) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\f':
      return "\\f";
    case '\b':
      return "\\b";
    default:
      break;
  }
  if (c >= 0x20 && (c < 0x7F || !ascii)) return "";
  std::string out;
  if (c < 0x10000) {
    AppendUnit(c, out);
  } else {
    AppendUnit(0xD800 + ((c - 0x10000) >> 10), out);
    AppendUnit(0xDC00 + ((c - 0x10000) & 0x3FF), out);
  }
  return out;
}

std::string RealJson(double real) {
  if (std::isnan(real)) return "NaN";
  if (std::isinf(real)) return real > 0 ? "Infinity" : "-Infinity";
  return RealText(real);
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  std::string_view Opening(const Value& value) const {
    const bool array = value.IsSequence() && (value.sequence().form == Sequence::Form::kList ||
                                              value.sequence().form == Sequence::Form::kTuple);
    return array ? "[" : value.IsDict() ? "{" : "";
  }
  std::string_view Closing(const Value& value) const { return value.IsDict() ? "}" : "]"; }
  std::string_view Separator() const { return style_.indent ? "," : ", "; }
  void AppendBreak(size_t level, TextBuilder& out) const {
    if (!style_.indent) return;
    out.Append("\n");
    for (size_t i = 0; i < level; ++i) out.Append(*style_.indent);
  }
  absl::Status AppendKey(const Value& key, TextBuilder& out) const {
    if (!key.IsText()) out.Append("\"");
    RETURN_IF_ERROR(AppendScalar(key, out));
    if (!key.IsText()) out.Append("\"");
    return absl::OkStatus();
  }
  absl::Status AppendScalar(const Value& value, TextBuilder& out) const {
    switch (value.kind()) {
      case Kind::kNone:
        out.Append("null");
        break;
      case Kind::kBoolean:
        out.Append(value.integer() != 0 ? "true" : "false");
        break;
      case Kind::kInteger:
        out.Append(std::to_string(value.integer()));
        break;
      case Kind::kReal:
        out.Append(RealJson(value.real()));
        break;
      case Kind::kText:
        out.Append("\"");
        AppendEscaped(
            value.text(), [this](char32_t c) { return JsonEscape(c, style_.ascii); }, out);
        out.Append("\"");
        break;
      default:
        return absl::InvalidArgumentError("Object of type " + std::string(value.TypeName()) +
                                          " is not JSON serializable");
    }
    return absl::OkStatus();
  }

 private:
  const JsonStyle& style_;
};

}  // namespace

absl::StatusOr<Value> JsonText(Heap& heap, const Value& value, const JsonStyle& style) {
  TextBuilder out(heap);
  RETURN_IF_ERROR(AppendNested(heap, value, JsonWriter(style), out));
  return out.Finish();
}

}  // namespace eta::jinja
