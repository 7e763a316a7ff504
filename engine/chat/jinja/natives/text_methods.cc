// Methods of texts, beside those of text_parts.cc.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/natives/access.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/natives/text_parts.h"
#include "engine/chat/jinja/values/operators.h"
#include "engine/chat/jinja/values/percent_format.h"
#include "engine/chat/jinja/values/text_builder.h"
#include "engine/chat/jinja/values/unicode.h"

namespace eta::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// The bytes of characters [start, stop) of a text, as find, count and startswith take them; nullopt
// where the start lies past the end.
struct Window {
  size_t begin = 0;
  size_t end = 0;
  size_t first_character = 0;
};
absl::StatusOr<std::optional<Window>> WindowOf(Heap& heap, const Text& text,
                                               const Arguments& arguments, size_t first) {
  const bool whole = !arguments.Has(first) && !arguments.Has(first + 1);
  heap.WorkOnBytes(text.bytes.size());
  if (whole) return Window{0, text.bytes.size(), 0};
  const auto length = static_cast<int64_t>(CountCharacters(text.bytes));
  const auto start = arguments.Integer(first, 0);
  if (!start.ok()) return start.status();
  const auto stop = arguments.Integer(first + 1, length);
  if (!stop.ok()) return stop.status();
  const auto clamp = [length](int64_t at) {
    return at < 0 ? std::max<int64_t>(at < -length ? 0 : at + length, 0) : at;
  };
  const int64_t from = clamp(*start);
  const int64_t to = std::min(clamp(*stop), length);
  if (from > length || from > to) return std::nullopt;
  return Window{ByteOfCharacter(text.bytes, static_cast<size_t>(from)),
                ByteOfCharacter(text.bytes, static_cast<size_t>(to)), static_cast<size_t>(from)};
}

Result Find(Context& context, const Value& receiver, Call& call, bool last) {
  const auto arguments = Arguments::Bind("find", call, {"sub", "start", "end"}, 1);
  if (!arguments.ok()) return arguments.status();
  const auto sub = arguments->Text(0);
  if (!sub.ok()) return sub.status();
  const auto window = WindowOf(context.heap, receiver.text(), *arguments, 1);
  if (!window.ok()) return window.status();
  if (!*window) return Value::Integer(-1);
  const std::string_view bytes = std::string_view(receiver.text().bytes)
                                     .substr((*window)->begin, (*window)->end - (*window)->begin);
  const size_t at = last ? bytes.rfind(sub->text().bytes) : bytes.find(sub->text().bytes);
  if (at == std::string_view::npos) return Value::Integer(-1);
  return Value::Integer(
      static_cast<int64_t>((*window)->first_character + CountCharacters(bytes.substr(0, at))));
}

Result Count(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("count", call, {"sub", "start", "end"}, 1);
  if (!arguments.ok()) return arguments.status();
  const auto sub = arguments->Text(0);
  if (!sub.ok()) return sub.status();
  const auto window = WindowOf(context.heap, receiver.text(), *arguments, 1);
  if (!window.ok()) return window.status();
  if (!*window) return Value::Integer(0);
  const std::string_view bytes = std::string_view(receiver.text().bytes)
                                     .substr((*window)->begin, (*window)->end - (*window)->begin);
  const std::string_view wanted = sub->text().bytes;
  if (wanted.empty()) return Value::Integer(static_cast<int64_t>(CountCharacters(bytes)) + 1);
  int64_t count = 0;
  for (size_t at = bytes.find(wanted); at != std::string_view::npos;
       at = bytes.find(wanted, at + wanted.size())) {
    ++count;
  }
  return Value::Integer(count);
}

// startswith and endswith, of one text or any of a tuple.
Result StartsOrEnds(Context& context, const Value& receiver, Call& call, bool ends) {
  const auto arguments =
      Arguments::Bind(ends ? "endswith" : "startswith", call, {"affix", "start", "end"}, 1);
  if (!arguments.ok()) return arguments.status();
  const auto window = WindowOf(context.heap, receiver.text(), *arguments, 1);
  if (!window.ok()) return window.status();
  if (!*window) return Value::Boolean(false);
  const std::string_view bytes = std::string_view(receiver.text().bytes)
                                     .substr((*window)->begin, (*window)->end - (*window)->begin);
  const Value& affix = (*arguments)[0];
  std::vector<Value> affixes = {affix};
  if (affix.IsSequence() && affix.sequence().form == Sequence::Form::kTuple) {
    affixes = affix.sequence().items;
  }
  bool found = false;
  for (const Value& one : affixes) {
    if (!one.IsText()) {
      return Fail("'startswith' and 'endswith' need a str or a tuple of str, not " +
                  std::string(one.TypeName()));
    }
    const std::string_view wanted = one.text().bytes;
    if (ends ? bytes.ends_with(wanted) : bytes.starts_with(wanted)) {
      found = true;
      break;
    }
  }
  return Value::Boolean(found);
}

Result ReplaceMethod(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("replace", call, {"old", "new", "count"}, 2);
  if (!arguments.ok()) return arguments.status();
  const auto old = arguments->Text(0);
  if (!old.ok()) return old.status();
  const auto fresh = arguments->Text(1);
  if (!fresh.ok()) return fresh.status();
  const auto count = arguments->Integer(2, -1);
  if (!count.ok()) return count.status();
  context.heap.WorkOnBytes(receiver.text().bytes.size());
  return Replace(context.heap, receiver.text(), old->text(), fresh->text(), *count);
}

Result JoinMethod(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("join", call, {"iterable"}, 1);
  if (!arguments.ok()) return arguments.status();
  const auto items = Iterated(context.heap, (*arguments)[0]);
  if (!items.ok()) return items.status();
  TextBuilder out(context.heap);
  bool first = true;
  for (const Value& item : items->sequence().items) {
    if (!item.IsText()) {
      return Fail("'join' of a str takes str alone, not " + std::string(item.TypeName()));
    }
    if (!std::exchange(first, false)) out.Append(receiver.text());
    out.Append(item.text());
    context.heap.Work(1);
    if (context.heap.exhausted()) break;
  }
  return out.Finish();
}

Result FormatMethod(Context& context, const Value& receiver, Call& call) {
  return BraceFormat(context.heap, receiver.text(), call.positional, call.named);
}

// All characters, and one at least.
template <bool (*is_one)(char32_t)>
Result All(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("a question about characters", call, {});
  if (!arguments.ok()) return arguments.status();
  const std::string_view bytes = receiver.text().bytes;
  context.heap.Work(bytes.size() / 16);
  for (size_t at = 0; at < bytes.size(); at += Utf8Length(bytes[at])) {
    if (!is_one(Utf8At(bytes, at))) return Value::Boolean(false);
  }
  return Value::Boolean(!bytes.empty());
}

}  // namespace

// str.islower and str.isupper.
bool HasCase(std::string_view bytes, bool lower) {
  bool cased = false;
  for (size_t at = 0; at < bytes.size(); at += Utf8Length(bytes[at])) {
    const char32_t c = Utf8At(bytes, at);
    if (IsTitle(c) || (lower ? IsUpper(c) : IsLower(c))) return false;
    cased |= lower ? IsLower(c) : IsUpper(c);
  }
  return cased;
}

std::vector<Native> TextMethods() {
  return {
      {"count", &Count},
      {"endswith", [](Context& context, const Value& receiver,
                      Call& call) { return StartsOrEnds(context, receiver, call, true); }},
      {"find", [](Context& context, const Value& receiver,
                  Call& call) { return Find(context, receiver, call, false); }},
      {"format", &FormatMethod},
      {"isalnum", &All<&IsAlnum>},
      {"isalpha", &All<&IsAlpha>},
      {"isdecimal", &All<&IsDecimal>},
      {"isdigit", &All<&IsDigit>},
      {"islower",
       [](Context& /*context*/, const Value& receiver, Call& /*call*/) -> Result {
         return Value::Boolean(HasCase(receiver.text().bytes, true));
       }},
      {"isspace", &All<&IsSpace>},
      {"isupper",
       [](Context& /*context*/, const Value& receiver, Call& /*call*/) -> Result {
         return Value::Boolean(HasCase(receiver.text().bytes, false));
       }},
      {"join", &JoinMethod},
      {"replace", &ReplaceMethod},
      {"rfind", [](Context& context, const Value& receiver,
                   Call& call) { return Find(context, receiver, call, true); }},
      {"startswith", [](Context& context, const Value& receiver,
                        Call& call) { return StartsOrEnds(context, receiver, call, false); }},
  };
}

}  // namespace eta::jinja
