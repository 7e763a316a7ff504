// lint: untrusted-input, fuzz-covered
// Methods of texts.
#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/natives/text_parts.h"
#include "engine/chat/jinja/values/python_text.h"
#include "engine/chat/jinja/values/text_builder.h"
#include "engine/chat/jinja/values/unicode.h"

namespace eta::jinja {
namespace {

// At most `most` cuts, unless it is negative.
std::vector<Value> SplitAt(Heap& heap, const Text& text, std::string_view separator, int64_t most) {
  std::vector<Value> parts;
  size_t begin = 0;
  while (!heap.exhausted() && most-- != 0) {
    const size_t end = text.bytes.find(separator, begin);
    if (end == std::string::npos) break;
    parts.push_back(SubText(heap, text, begin, end));
    begin = end + separator.size();
  }
  parts.push_back(SubText(heap, text, begin, text.bytes.size()));
  return parts;
}

// Likewise between runs of whitespace, those at the ends left out.
std::vector<Value> SplitAtSpace(Heap& heap, const Text& text, int64_t most) {
  const std::string_view bytes = text.bytes;
  std::vector<Value> parts;
  size_t begin = 0;
  while (!heap.exhausted()) {
    while (begin < bytes.size() && IsSpace(Utf8At(bytes, begin))) begin += Utf8Length(bytes[begin]);
    if (begin == bytes.size()) break;
    size_t end = most-- == 0 ? bytes.size() : begin;
    while (end < bytes.size() && !IsSpace(Utf8At(bytes, end))) end += Utf8Length(bytes[end]);
    parts.push_back(SubText(heap, text, begin, end));
    begin = end;
  }
  return parts;
}

Result Split(Context& context, const Value& receiver, Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto most, arguments.Integer(1, -1));
  Heap& heap = context.heap;
  heap.WorkOnBytes(receiver.text().bytes.size());
  if (!arguments.Has(0)) return MakeList(heap, SplitAtSpace(heap, receiver.text(), most));
  ASSIGN_OR_RETURN(const auto separator, arguments.Text(0));
  if (separator.text().bytes.empty()) return Fail("empty separator");
  return MakeList(heap, SplitAt(heap, receiver.text(), separator.text().bytes, most));
}

// startswith and endswith, of one text or any of a tuple.
template <bool ends>
Result StartsOrEnds(Context& context, const Value& receiver, Arguments& arguments) {
  const std::string_view bytes = receiver.text().bytes;
  context.heap.WorkOnBytes(bytes.size());
  std::vector<Value> affixes = {arguments[0]};
  if (affixes[0].IsSequence() && affixes[0].sequence().form == Sequence::Form::kTuple) {
    affixes = arguments[0].sequence().items;
  }
  for (const Value& affix : affixes) {
    if (!affix.IsText()) {
      return Fail("'startswith' and 'endswith' need a str or a tuple of str, not " +
                  std::string(affix.TypeName()));
    }
    const std::string_view wanted = affix.text().bytes;
    if (ends ? bytes.ends_with(wanted) : bytes.starts_with(wanted)) return Value::Boolean(true);
  }
  return Value::Boolean(false);
}

Result ReplaceText(Context& context, const Value& receiver, Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto old, arguments.Text(0));
  ASSIGN_OR_RETURN(const auto fresh, arguments.Text(1));
  ASSIGN_OR_RETURN(const auto count, arguments.Integer(2, -1));
  return Replace(context.heap, receiver.text(), old.text(), fresh.text(), count);
}

// "{}" alone.
Result Format(Context& context, const Value& receiver, Arguments& arguments) {
  const Text& format = receiver.text();
  const std::string_view bytes = format.bytes;
  const std::vector<Value>& values = arguments.call().positional;
  TextBuilder out(context.heap);
  size_t next = 0;
  size_t at = 0;
  while (true) {
    const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.Append(format, at, brace);
    if (brace == bytes.size()) return out.Finish();
    context.heap.Work(1);
    const std::string_view rest = bytes.substr(brace);
    if (rest.starts_with("{{") || rest.starts_with("}}")) {
      out.Append(format, brace, brace + 1);
    } else if (!rest.starts_with("{}")) {
      const size_t end = rest.find('}');
      if (rest[0] == '}' || end == std::string_view::npos)
        return Fail("a single brace in a format");
      return NotKnown("format '" + std::string(rest.substr(0, end + 1)) + "' is not known here");
    } else {
      if (next == values.size()) return Fail("a format's argument is not there");
      ASSIGN_OR_RETURN(const auto text, ToText(context.heap, values[next++]));
      out.Append(text.text());
    }
    at = brace + 2;
  }
}

}  // namespace

std::vector<Native> TextMethods() {
  return {
      {"capitalize", &CaseText<Casing::kCapitalize>},
      {"endswith", &StartsOrEnds<true>, {"suffix", "start", "end"}, 1, 1},
      {.name = "format", .run = &Format, .takes_any = true},
      {"lower", &CaseText<Casing::kLower>},
      {"lstrip", &StripText<true, false>, {"chars"}},
      {"replace", &ReplaceText, {"old", "new", "count"}, 2},
      {"rstrip", &StripText<false, true>, {"chars"}},
      {"split", &Split, {"sep", "maxsplit"}},
      {"startswith", &StartsOrEnds<false>, {"prefix", "start", "end"}, 1, 1},
      {"strip", &StripText<true, true>, {"chars"}},
      {"title", &CaseText<Casing::kTitle>},
      {"upper", &CaseText<Casing::kUpper>},
  };
}

}  // namespace eta::jinja
