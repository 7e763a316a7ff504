#include "engine/chat/jinja/values/python_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/values/nested_text.h"
#include "engine/chat/jinja/values/unicode.h"

namespace eta::jinja {
namespace {

// What stands for a character between such quotes; empty if it stands for itself.
std::string ReprEscape(char32_t c, char quote) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  if (c == '\\' || c == static_cast<char32_t>(quote)) return {'\\', static_cast<char>(c)};
  if (c >= 0x20 && c != 0x7F && (c < 0x80 || IsPrintable(c))) return "";
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out = c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
  for (int shift = c < 0x100 ? 4 : c < 0x10000 ? 12 : 28; shift >= 0; shift -= 4) {
    out += kDigits[c >> shift & 0xF];
  }
  return out;
}

// A str as Python writes it in source.
void AppendQuoted(const Text& text, TextBuilder& out) {
  const bool double_quotes =
      text.bytes.find('\'') != std::string::npos && text.bytes.find('"') == std::string::npos;
  const char quote = double_quotes ? '"' : '\'';
  out.Append(std::string_view(&quote, 1));
  AppendEscaped(
      text, [quote](char32_t c) { return ReprEscape(c, quote); }, out);
  out.Append(std::string_view(&quote, 1));
}

// As repr() writes values.
struct ReprWriter {
  std::string_view Opening(const Value& value) const {
    if (value.IsDict()) return "{";
    if (!value.IsSequence()) return "";
    const Sequence::Form form = value.sequence().form;
    return form == Sequence::Form::kList ? "[" : form == Sequence::Form::kTuple ? "(" : "";
  }
  std::string_view Closing(const Value& value) const {
    if (value.IsDict()) return "}";
    if (value.sequence().form == Sequence::Form::kList) return "]";
    return value.sequence().items.size() == 1 ? ",)" : ")";
  }
  std::string_view Separator() const { return ", "; }
  void AppendBreak(size_t /*level*/, TextBuilder& /*out*/) const {}
  absl::Status AppendKey(const Value& key, TextBuilder& out) const {
    return AppendScalar(key, out);
  }
  absl::Status AppendScalar(const Value& value, TextBuilder& out) const {
    switch (value.kind()) {
      case Kind::kUndefined:
        out.Append("Undefined");
        break;
      case Kind::kNone:
        out.Append("None");
        break;
      case Kind::kBoolean:
        out.Append(value.integer() != 0 ? "True" : "False");
        break;
      case Kind::kInteger:
        out.Append(std::to_string(value.integer()));
        break;
      case Kind::kReal:
        out.Append(RealText(value.real()));
        break;
      case Kind::kText:
        if (value.text().safe) {
          return absl::UnimplementedError(
              "the source form of a text that 'safe' made is not known here");
        }
        AppendQuoted(value.text(), out);
        break;
      default:
        return absl::UnimplementedError("the text of a " + std::string(value.TypeName()) +
                                        " is not known here");
    }
    return absl::OkStatus();
  }
};

absl::Status AppendRepr(Heap& heap, const Value& value, TextBuilder& out) {
  return AppendNested(heap, value, ReprWriter(), out);
}

}  // namespace

std::string RealText(double real) {
  if (std::isnan(real)) return "nan";
  if (std::isinf(real)) return real > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), real,
                                 std::chars_format::scientific)
                       .ptr;
  const std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto fixed =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), real, std::chars_format::fixed)
          .ptr;
  std::string out(buffer.data(), fixed);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

absl::Status AppendStr(Heap& heap, const Value& value, TextBuilder& out) {
  if (value.IsText()) {
    out.Append(value.text());
    return absl::OkStatus();
  }
  if (value.IsUndefined()) return absl::OkStatus();
  return AppendRepr(heap, value, out);
}

absl::StatusOr<Value> ToText(Heap& heap, const Value& value) {
  if (value.IsText()) return value;
  TextBuilder out(heap);
  RETURN_IF_ERROR(AppendStr(heap, value, out));
  return out.Finish();
}

}  // namespace eta::jinja
