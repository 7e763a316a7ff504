#include "engine/chat/jinja/values/python_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/values/unicode.h"

namespace eta::jinja {
namespace {

void AppendHex(char32_t number, int digits, std::string& out) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  for (int digit = digits - 1; digit >= 0; --digit) {
    out += kDigits[number >> (4 * digit) & 0xF];
  }
}

// A str as Python writes it in source.
void AppendQuoted(const Text& text, TextBuilder& out) {
  const std::string_view bytes = text.bytes;
  const bool double_quotes =
      bytes.find('\'') != std::string_view::npos && bytes.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  out.Append(std::string_view(&quote, 1));
  std::string escape;
  size_t plain = 0;  // where what stays as it is begins
  for (size_t at = 0; at < bytes.size(); at += Utf8Length(bytes[at])) {
    const char32_t c = Utf8At(bytes, at);
    escape.clear();
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      escape = {'\\', static_cast<char>(c)};
    } else if (c == '\n') {
      escape = "\\n";
    } else if (c == '\r') {
      escape = "\\r";
    } else if (c == '\t') {
      escape = "\\t";
    } else if (c < 0x20 || c == 0x7F || (c >= 0x80 && !IsPrintable(c))) {
      escape = c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
      AppendHex(c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8, escape);
    } else {
      continue;
    }
    out.Append(text, plain, at);
    out.Append(escape, IsOwn(text, at));
    plain = at + Utf8Length(bytes[at]);
  }
  out.Append(text, plain, bytes.size());
  out.Append(std::string_view(&quote, 1));
}

absl::Status AppendScalar(const Value& value, TextBuilder& out) {
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
            "the source form of a text that 'safe' or 'escape' made is not known here");
      }
      AppendQuoted(value.text(), out);
      break;
    default:
      return absl::UnimplementedError("the text of a " + std::string(value.TypeName()) +
                                      " is not known here");
  }
  return absl::OkStatus();
}

// A list, tuple or dict whose items are being written.
struct Open {
  const Value* value;
  size_t next = 0;
};

bool IsContainer(const Value& value) {
  return value.IsSequence() || value.IsDict();
}

absl::Status Begin(const Value& value, TextBuilder& out) {
  if (value.IsDict()) {
    out.Append("{");
    return absl::OkStatus();
  }
  switch (value.sequence().form) {
    case Sequence::Form::kList:
      out.Append("[");
      return absl::OkStatus();
    case Sequence::Form::kTuple:
      out.Append("(");
      return absl::OkStatus();
    case Sequence::Form::kView:
      out.Append(value.sequence().view);
      out.Append("([");
      return absl::OkStatus();
    default:
      return absl::UnimplementedError("the text of a " + std::string(value.TypeName()) +
                                      " is not known here");
  }
}

std::string_view End(const Value& value) {
  if (value.IsDict()) return "}";
  if (value.sequence().form == Sequence::Form::kView) return "])";
  if (value.sequence().form == Sequence::Form::kList) return "]";
  return value.sequence().items.size() == 1 ? ",)" : ")";
}

absl::Status AppendRange(const Sequence& range, TextBuilder& out) {
  if (range.label.empty()) {
    return absl::UnimplementedError("the text of a slice of a range is not known here");
  }
  out.Append(range.label);
  return absl::OkStatus();
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

absl::Status AppendRepr(Heap& heap, const Value& value, TextBuilder& out) {
  if (!IsContainer(value)) return AppendScalar(value, out);
  if (value.IsSequence() && value.sequence().form == Sequence::Form::kRange) {
    return AppendRange(value.sequence(), out);
  }
  RETURN_IF_ERROR(Begin(value, out));
  std::vector<Open> open = {{&value}};
  while (!open.empty()) {
    heap.Work(1);
    if (heap.exhausted()) return heap.status();
    Open& top = open.back();
    const size_t size =
        top.value->IsDict() ? top.value->dict().entries.size() : top.value->sequence().items.size();
    if (top.next == size) {
      out.Append(End(*top.value));
      open.pop_back();
      continue;
    }
    if (top.next > 0) out.Append(", ");
    const size_t at = top.next++;
    const Value* item = nullptr;
    if (top.value->IsDict()) {
      const auto& entry = top.value->dict().entries[at];
      RETURN_IF_ERROR(AppendScalar(entry.first, out));
      out.Append(": ");
      item = &entry.second;
    } else {
      item = &top.value->sequence().items[at];
    }
    if (!IsContainer(*item)) {
      RETURN_IF_ERROR(AppendScalar(*item, out));
    } else if (item->IsSequence() && item->sequence().form == Sequence::Form::kRange) {
      RETURN_IF_ERROR(AppendRange(item->sequence(), out));
    } else {
      RETURN_IF_ERROR(Begin(*item, out));
      open.push_back({item});
    }
  }
  return absl::OkStatus();
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
