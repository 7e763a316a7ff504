// lint: untrusted-input, fuzz-covered
#include "engine/chat/jinja/values/percent_format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>

#include "engine/base/status_macros.h"
#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/values/python_text.h"
#include "engine/chat/jinja/values/text_builder.h"

namespace eta::jinja {
namespace {

constexpr size_t kMaxWidth = 1000;

// %[flags][width][.precision]conversion
struct Placeholder {
  bool left = false;
  bool plus = false;
  bool space = false;
  bool zero = false;
  bool alternate = false;
  size_t width = 0;
  std::optional<size_t> precision;
  char conversion = 's';
};

absl::Status Bad(std::string sentence) {
  return absl::InvalidArgumentError(sentence);
}

bool IsAsciiDigit(char c) {
  return c >= '0' && c <= '9';
}

absl::StatusOr<size_t> Size(std::string_view format, size_t& at) {
  size_t number = 0;
  for (; at < format.size() && IsAsciiDigit(format[at]); ++at) {
    // cannot wrap: at most kMaxWidth before
    number = number * 10 + static_cast<size_t>(format[at] - '0');
    if (number > kMaxWidth) {
      return absl::ResourceExhaustedError("a format wider than " + std::to_string(kMaxWidth));
    }
  }
  return number;
}

// From after "%" (and "(name)") on.
absl::StatusOr<Placeholder> Read(std::string_view format, size_t& at) {
  Placeholder place;
  for (; at < format.size(); ++at) {
    const char c = format[at];
    if (c == '-') {
      place.left = true;
    } else if (c == '+') {
      place.plus = true;
    } else if (c == ' ') {
      place.space = true;
    } else if (c == '0') {
      place.zero = true;
    } else if (c == '#') {
      place.alternate = true;
    } else {
      break;
    }
  }
  const auto width = Size(format, at);
  if (!width.ok()) return width.status();
  place.width = *width;
  if (at < format.size() && format[at] == '.') {
    const auto precision = Size(format, ++at);
    if (!precision.ok()) return precision.status();
    place.precision = *precision;
  }
  if (at == format.size()) return Bad("incomplete format");
  place.conversion = format[at++];
  return place;
}

std::string Sign(const Placeholder& place, bool negative) {
  return negative ? "-" : place.plus ? "+" : place.space ? " " : "";
}

absl::StatusOr<std::string> Integer(const Placeholder& place, const Value& value) {
  if (!value.IsNumber() ||
      (value.Is(Kind::kReal) &&
       std::string_view("xXo").find(place.conversion) != std::string_view::npos)) {
    return Bad("a number is required by a format, not " + std::string(value.TypeName()));
  }
  int64_t number = value.integer();
  if (value.Is(Kind::kReal)) {
    if (!(std::fabs(value.real()) < 9.2e18)) return Bad("a float that is no 64-bit integer");
    number = static_cast<int64_t>(value.real());
  }
  const bool hex = place.conversion == 'x' || place.conversion == 'X';
  std::array<char, 72> buffer;
  const uint64_t magnitude =
      number < 0 ? ~static_cast<uint64_t>(number) + 1 : static_cast<uint64_t>(number);
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), magnitude,
                                 hex                       ? 16
                                 : place.conversion == 'o' ? 8
                                                           : 10)
                       .ptr;
  std::string digits(buffer.data(), end);
  if (place.precision && digits.size() < *place.precision) {
    digits.insert(0, *place.precision - digits.size(), '0');
  }
  if (place.alternate && hex) digits.insert(0, "0x");
  if (place.alternate && place.conversion == 'o') digits.insert(0, "0o");
  if (place.conversion == 'X') {
    for (char& c : digits) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  }
  return Sign(place, number < 0) + digits;
}

absl::StatusOr<std::string> Real(const Placeholder& place, const Value& value) {
  if (!value.IsNumber()) {
    return Bad("a float is required by a format, not " + std::string(value.TypeName()));
  }
  const double real = value.real();
  if (!std::isfinite(real)) {
    return Sign(place, std::signbit(real) && !std::isnan(real)) +
           (std::isnan(real) ? "nan" : "inf");
  }
  std::array<char, 1400> buffer;
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::fabs(real),
                    std::chars_format::fixed, static_cast<int>(place.precision.value_or(6)))
          .ptr;
  return Sign(place, std::signbit(real)) + std::string(buffer.data(), end);
}

// A number in its width.
std::string Padded(const Placeholder& place, std::string text) {
  if (text.size() >= place.width) return text;
  const size_t missing = place.width - text.size();
  if (place.left) return text + std::string(missing, ' ');
  if (!place.zero) return std::string(missing, ' ') + text;
  size_t digits = !text.empty() && (text[0] == '-' || text[0] == '+' || text[0] == ' ') ? 1 : 0;
  if (place.alternate && text.size() > digits + 1 && text[digits] == '0') digits += 2;
  return text.insert(digits, missing, '0');
}

absl::Status AppendText(Heap& heap, const Placeholder& place, const Value& value,
                        TextBuilder& out) {
  TextBuilder builder(heap);
  RETURN_IF_ERROR(place.conversion == 'r' ? AppendRepr(heap, value, builder)
                                          : AppendStr(heap, value, builder));
  const Value text = builder.Finish();
  const std::string& bytes = text.text().bytes;
  size_t end = 0;
  size_t characters = 0;
  while (end < bytes.size() && (!place.precision || characters < *place.precision)) {
    end += Utf8Length(bytes[end]);
    ++characters;
  }
  const std::string padding(place.width > characters ? place.width - characters : 0, ' ');
  if (!place.left) out.Append(padding);
  out.Append(text.text(), 0, end);
  if (place.left) out.Append(padding);
  return absl::OkStatus();
}

absl::Status AppendValue(Heap& heap, const Placeholder& place, const Value& value,
                         TextBuilder& out) {
  switch (place.conversion) {
    case 's':
    case 'r':
      return AppendText(heap, place, value, out);
    case 'c':
      if (value.IsText() && !value.text().bytes.empty() &&
          Utf8Length(value.text().bytes[0]) == value.text().bytes.size()) {
        return AppendText(heap, place, value, out);
      }
      return absl::UnimplementedError("format %c of what is no character is not known here");
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      const auto text = Integer(place, value);
      if (!text.ok()) return text.status();
      out.Append(Padded(place, *text));
      return absl::OkStatus();
    }
    case 'f':
    case 'F': {
      const auto text = Real(place, value);
      if (!text.ok()) return text.status();
      out.Append(Padded(place, *text));
      return absl::OkStatus();
    }
    default:
      return absl::UnimplementedError("format %" + std::string(1, place.conversion) +
                                      " is not known here");
  }
}

}  // namespace

absl::StatusOr<Value> PercentFormat(Heap& heap, const Text& format, const Value& arguments) {
  const bool tuple = arguments.IsSequence() && arguments.sequence().form == Sequence::Form::kTuple;
  const std::span<const Value> items =
      tuple ? std::span<const Value>(arguments.sequence().items) : std::span(&arguments, 1);
  const std::string_view bytes = format.bytes;
  TextBuilder out(heap);
  size_t used = 0;
  bool by_name = false;
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t percent = std::min(bytes.find('%', at), bytes.size());
    out.Append(format, at, percent);
    if (percent == bytes.size()) break;
    at = percent + 1;
    std::optional<Value> named;
    if (at < bytes.size() && bytes[at] == '(') {
      const size_t end = bytes.find(')', at);
      if (end == std::string_view::npos) return Bad("incomplete format key");
      if (!arguments.IsDict()) return Bad("format requires a mapping");
      const Value* value = arguments.dict().Find(bytes.substr(at + 1, end - at - 1));
      if (value == nullptr) return Bad("a format's key is not there");
      named = *value;
      by_name = true;
      at = end + 1;
    }
    const auto place = Read(bytes, at);
    if (!place.ok()) return place.status();
    heap.Work(1);
    if (place->conversion == '%') {
      out.Append(format, at - 1, at);
      continue;
    }
    if (!named) {
      if (used == items.size()) return Bad("not enough arguments for format string");
      named = items[used++];
    }
    RETURN_IF_ERROR(AppendValue(heap, *place, *named, out));
  }
  // What has items by a key takes the place of a mapping, whose rest nobody misses.
  const bool like_mapping = arguments.IsDict() || arguments.IsUndefined() ||
                            (arguments.IsSequence() && !tuple && arguments.sequence().HasItems());
  if (used < items.size() && !by_name && !like_mapping) {
    return Bad("not all arguments converted during string formatting");
  }
  return out.Finish();
}

absl::StatusOr<Value> BraceFormat(Heap& heap, const Text& format, std::span<const Value> positional,
                                  std::span<const std::pair<std::string_view, Value>> named) {
  const std::string_view bytes = format.bytes;
  TextBuilder out(heap);
  size_t next = 0;
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.Append(format, at, brace);
    if (brace == bytes.size()) break;
    heap.Work(1);
    if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
      out.Append(format, brace, brace + 1);
      at = brace + 2;
      continue;
    }
    const size_t end = bytes.find('}', brace);
    if (bytes[brace] == '}' || end == std::string_view::npos)
      return Bad("a single brace in a format");
    std::string_view field = bytes.substr(brace + 1, end - brace - 1);
    at = end + 1;
    Placeholder place;
    if (field.ends_with("!r") || field.ends_with("!s")) {
      place.conversion = field.back();
      field.remove_suffix(2);
    }
    if (field.find_first_of(":.[!{") != std::string_view::npos) {
      return absl::UnimplementedError("format '{" + std::string(field) + "}' is not known here");
    }
    const Value* value = nullptr;
    if (field.empty() || IsAsciiDigit(field[0])) {
      size_t index = next;
      if (field.empty()) {
        ++next;
      } else if (std::from_chars(field.data(), field.data() + field.size(), index).ptr !=
                 field.data() + field.size()) {
        return Bad("a format's index is no number");
      }
      if (index < positional.size()) value = &positional[index];
    } else {
      const auto entry = std::find_if(named.begin(), named.end(), [&](const auto& candidate) {
        return candidate.first == field;
      });
      if (entry != named.end()) value = &entry->second;
    }
    if (value == nullptr) return Bad("a format's argument is not there");
    RETURN_IF_ERROR(AppendText(heap, place, *value, out));
  }
  return out.Finish();
}

}  // namespace eta::jinja
