// lint: untrusted-input, fuzz-covered
// Filters that make texts, and the number that a text spells.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/natives/text_parts.h"
#include "engine/chat/jinja/values/json_text.h"
#include "engine/chat/jinja/values/python_text.h"
#include "engine/chat/jinja/values/text_builder.h"
#include "engine/chat/jinja/values/unicode.h"

namespace eta::jinja {
namespace {

constexpr int64_t kMaxIndent = 1000;

// A method of texts as a filter, which makes a text of any value first.
template <NativeFunction method>
Result OfText(Context& context, const Value& receiver, Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto text, ToText(context.heap, receiver));
  return method(context, text, arguments);
}

// Likewise what it is given.
Result ReplaceFilter(Context& context, const Value& receiver, Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto old, ToText(context.heap, arguments[0]));
  ASSIGN_OR_RETURN(const auto fresh, ToText(context.heap, arguments[1]));
  ASSIGN_OR_RETURN(const auto count, arguments.Integer(2, -1));
  return Replace(context.heap, receiver.text(), old.text(), fresh.text(), count);
}

Result String(Context& /*context*/, const Value& receiver, Arguments& /*arguments*/) {
  return receiver;
}

Result Safe(Context& context, const Value& receiver, Arguments& /*arguments*/) {
  Value safe = SubText(context.heap, receiver.text(), 0, receiver.text().bytes.size());
  safe.As<Text>().safe = true;
  return safe;
}

// As wide as a number says, or the text itself.
Result Indentation(Context& context, const Value& width) {
  if (width.IsText()) return width;
  if (!width.IsIntegral()) return Fail("an indentation must be an int or a str");
  if (width.integer() > kMaxIndent) {
    return absl::ResourceExhaustedError("an indentation of over " + std::to_string(kMaxIndent));
  }
  return MakeText(context.heap,
                  std::string(static_cast<size_t>(std::max<int64_t>(width.integer(), 0)), ' '));
}

// Every line but the first, and but for those that are empty.
Result Indent(Context& context, const Value& receiver, Arguments& arguments) {
  if (receiver.IsUndefined()) return Fail(receiver.why());
  if (!receiver.IsText()) return Fail("'indent' needs a str");
  ASSIGN_OR_RETURN(const auto indentation,
                   Indentation(context, arguments.Or(0, Value::Integer(4))));
  std::string_view bytes = receiver.text().bytes;
  if (bytes.ends_with('\r'))
    bytes.remove_suffix(1);  // Jinja puts a "\n" behind, a line break with it
  TextBuilder out(context.heap);
  if (arguments.Truth(1)) out.Append(indentation.text());
  for (size_t begin = 0; !context.heap.exhausted();) {
    size_t end = begin;
    while (end < bytes.size() && !IsLineBreak(Utf8At(bytes, end))) end += Utf8Length(bytes[end]);
    context.heap.WorkOnBytes(end - begin);  // a step at least: a text may have a line per byte
    if (begin > 0 && end > begin) out.Append(indentation.text());
    out.Append(receiver.text(), begin, end);
    if (end == bytes.size()) break;
    out.Append("\n");
    begin = end + (bytes.substr(end).starts_with("\r\n") ? 2 : Utf8Length(bytes[end]));
  }
  return out.Finish();
}

Result ToJson(Context& context, const Value& receiver, Arguments& arguments) {
  JsonStyle style{.ascii = arguments.Truth(0), .indent = {}};
  if (arguments.Has(1)) {
    ASSIGN_OR_RETURN(const auto indentation, Indentation(context, arguments[1]));
    style.indent = indentation.text().bytes;
  }
  return JsonText(context.heap, receiver, style);
}

// What int() makes of a text, and then float(): nothing of what is no number.
absl::StatusOr<std::optional<Value>> Number(std::string_view text) {
  for (const char c : text) {
    if (c == '_' || static_cast<unsigned char>(c) >= 0x80) {
      return NotKnown("'int' of digits with '_' or outside ASCII is not known here");
    }
  }
  const bool plus = text.starts_with('+');
  if (plus) text.remove_prefix(1);
  if (text.empty() || (plus && (text[0] == '-' || text[0] == '+'))) return std::nullopt;
  const char* const end = text.data() + text.size();
  int64_t integer = 0;
  const auto whole = std::from_chars(text.data(), end, integer);
  if (whole.ptr == end && whole.ec == std::errc()) return Value::Integer(integer);
  double real = 0;
  const auto parsed = std::from_chars(text.data(), end, real);
  if (parsed.ptr != end || parsed.ec == std::errc::invalid_argument) return std::nullopt;
  if (parsed.ec != std::errc()) return NotKnown("'int' of such a number is not known here");
  return Value::Real(real);
}

Result Int(Context& context, const Value& receiver, Arguments& arguments) {
  if (receiver.IsUndefined()) return Fail(receiver.why());
  std::optional<Value> number = receiver;
  if (receiver.IsText()) {
    const Value text = Strip(context.heap, receiver.text(), std::nullopt, true, true);
    ASSIGN_OR_RETURN(number, Number(text.text().bytes));
  }
  if (number && number->IsIntegral()) return Value::Integer(number->integer());
  if (!number || !number->IsNumber() || !std::isfinite(number->real())) {
    return arguments.Or(0, Value::Integer(0));
  }
  if (std::fabs(number->real()) >= 9.2233720368547758e18) {
    return NotKnown("integers of over 64 bits are not known here");
  }
  return Value::Integer(static_cast<int64_t>(number->real()));
}

}  // namespace

std::vector<Native> TextFilters() {
  return {
      {"capitalize", &OfText<&CaseText<Casing::kCapitalize>>},
      {"indent", &Indent, {"width", "first", "blank"}, 0, 2},
      {"int", &Int, {"default", "base"}, 0, 1},
      {"lower", &OfText<&CaseText<Casing::kLower>>},
      {"replace", &OfText<&ReplaceFilter>, {"old", "new", "count"}, 2},
      {"safe", &OfText<&Safe>},
      {"string", &OfText<&String>},
      {"tojson", &ToJson, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, 2},
      {"trim", &OfText<&StripText<true, true>>, {"chars"}},
      {"upper", &OfText<&CaseText<Casing::kUpper>>},
  };
}

}  // namespace eta::jinja
