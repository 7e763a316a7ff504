#include "engine/chat/jinja/natives/text_parts.h"

#include <string>
#include <utility>

#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/natives/access.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/values/text_builder.h"
#include "engine/chat/jinja/values/unicode.h"

namespace eta::jinja {
namespace {

bool Holds(std::string_view characters, std::string_view character) {
  return characters.find(character) != std::string_view::npos;
}

bool IsStripped(std::string_view text, size_t at,
                const std::optional<std::string_view>& characters) {
  if (!characters) return IsSpace(Utf8At(text, at));
  return Holds(*characters, text.substr(at, Utf8Length(text[at])));
}

bool IsLineBreak(char32_t c) {
  return (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

// Whether a word may begin after this character, for Jinja's filter title.
bool SeparatesWords(char32_t c) {
  return IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

// Pieces from the left: between separators, or between runs of whitespace.
std::vector<Value> SplitLeft(Heap& heap, const Text& text, const std::string_view* separator,
                             int64_t most) {
  const std::string_view bytes = text.bytes;
  std::vector<Value> parts;
  size_t begin = 0;
  if (separator != nullptr) {
    while (!heap.exhausted() && most-- != 0) {
      const size_t end = bytes.find(*separator, begin);
      if (end == std::string_view::npos) break;
      parts.push_back(SubText(heap, text, begin, end));
      begin = end + separator->size();
    }
    parts.push_back(SubText(heap, text, begin, bytes.size()));
    return parts;
  }
  while (!heap.exhausted()) {
    while (begin < bytes.size() && IsSpace(Utf8At(bytes, begin))) begin += Utf8Length(bytes[begin]);
    if (begin == bytes.size()) break;
    size_t end = begin;
    if (most-- == 0) {
      parts.push_back(SubText(heap, text, begin, bytes.size()));
      break;
    }
    while (end < bytes.size() && !IsSpace(Utf8At(bytes, end))) end += Utf8Length(bytes[end]);
    parts.push_back(SubText(heap, text, begin, end));
    begin = end;
  }
  return parts;
}

// Likewise from the right; the pieces come in the order of the text.
std::vector<Value> SplitRight(Heap& heap, const Text& text, const std::string_view* separator,
                              int64_t most) {
  const std::string_view bytes = text.bytes;
  std::vector<Value> parts;
  size_t end = bytes.size();
  if (separator != nullptr) {
    while (!heap.exhausted() && most-- != 0 && end >= separator->size()) {
      const size_t at = bytes.rfind(*separator, end - separator->size());
      if (at == std::string_view::npos) break;
      parts.push_back(SubText(heap, text, at + separator->size(), end));
      end = at;
    }
    parts.push_back(SubText(heap, text, 0, end));
    return {parts.rbegin(), parts.rend()};
  }
  while (!heap.exhausted()) {
    while (end > 0 && IsSpace(Utf8At(bytes, Utf8Before(bytes, end)))) end = Utf8Before(bytes, end);
    if (end == 0) break;
    if (most-- == 0) {
      parts.push_back(SubText(heap, text, 0, end));
      break;
    }
    size_t begin = end;
    while (begin > 0 && !IsSpace(Utf8At(bytes, Utf8Before(bytes, begin)))) {
      begin = Utf8Before(bytes, begin);
    }
    parts.push_back(SubText(heap, text, begin, end));
    end = begin;
  }
  return {parts.rbegin(), parts.rend()};
}

absl::StatusOr<Value> Split(Context& context, const Value& receiver, Call& call, bool right) {
  const auto arguments = Arguments::Bind(right ? "rsplit" : "split", call, {"sep", "maxsplit"});
  if (!arguments.ok()) return arguments.status();
  const auto most = arguments->Integer(1, -1);
  if (!most.ok()) return most.status();
  std::string_view separator;
  const bool has_separator = arguments->Has(0) && !(*arguments)[0].Is(Kind::kNone);
  if (has_separator) {
    const auto text = arguments->Text(0);
    if (!text.ok()) return text.status();
    separator = text->text().bytes;  // the argument holds it
    if (separator.empty()) return Fail("empty separator");
  }
  const std::string_view* const given = has_separator ? &separator : nullptr;
  context.heap.WorkOnBytes(receiver.text().bytes.size());
  return MakeList(context.heap, right ? SplitRight(context.heap, receiver.text(), given, *most)
                                      : SplitLeft(context.heap, receiver.text(), given, *most));
}

absl::StatusOr<Value> StripMethod(Context& context, const Value& receiver, Call& call, bool left,
                                  bool right) {
  const auto arguments = Arguments::Bind("strip", call, {"chars"});
  if (!arguments.ok()) return arguments.status();
  if (!arguments->Has(0) || (*arguments)[0].Is(Kind::kNone)) {
    return Strip(context.heap, receiver.text(), std::nullopt, left, right);
  }
  const auto characters = arguments->Text(0);
  if (!characters.ok()) return characters.status();
  return Strip(context.heap, receiver.text(), characters->text().bytes, left, right);
}

template <Casing casing>
absl::StatusOr<Value> CaseMethod(Context& context, const Value& receiver, Call& call) {
  const auto arguments = Arguments::Bind("a method of case", call, {});
  if (!arguments.ok()) return arguments.status();
  return InCase(context.heap, receiver.text(), casing);
}

}  // namespace

Value Strip(Heap& heap, const Text& text, std::optional<std::string_view> characters, bool left,
            bool right) {
  const std::string_view bytes = text.bytes;
  size_t begin = 0;
  size_t end = bytes.size();
  if (left) {
    while (begin < end && IsStripped(bytes, begin, characters)) begin += Utf8Length(bytes[begin]);
  }
  if (right) {
    while (end > begin && IsStripped(bytes, Utf8Before(bytes, end), characters)) {
      end = Utf8Before(bytes, end);
    }
  }
  heap.Work((bytes.size() - (end - begin)) * (characters ? 1 + characters->size() / 64 : 1) / 16);
  return SubText(heap, text, begin, end);
}

Value Replace(Heap& heap, const Text& text, const Text& old, const Text& fresh, int64_t count) {
  const std::string_view bytes = text.bytes;
  TextBuilder out(heap);
  size_t plain = 0;
  if (old.bytes.empty()) {  // before every character and at the end
    while (count != 0 && !heap.exhausted()) {
      --count;
      heap.Work(1);
      out.Append(fresh);
      if (plain == bytes.size()) break;
      const size_t end = plain + Utf8Length(bytes[plain]);
      out.Append(text, plain, end);
      plain = end;
    }
  }
  while (!old.bytes.empty() && count != 0 && !heap.exhausted()) {
    const size_t at = bytes.find(old.bytes, plain);
    if (at == std::string_view::npos) break;
    --count;
    heap.Work(1);
    out.Append(text, plain, at);
    out.Append(fresh);
    plain = at + old.bytes.size();
  }
  out.Append(text, plain, bytes.size());
  return out.Finish();
}

std::vector<Value> Lines(Heap& heap, const Text& text, bool keep_ends) {
  const std::string_view bytes = text.bytes;
  std::vector<Value> lines;
  size_t begin = 0;
  heap.WorkOnBytes(bytes.size());
  while (begin < bytes.size() && !heap.exhausted()) {
    size_t end = begin;
    while (end < bytes.size() && !IsLineBreak(Utf8At(bytes, end))) end += Utf8Length(bytes[end]);
    size_t next = end;
    if (end < bytes.size()) {
      next += Utf8Length(bytes[end]);
      if (bytes[end] == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
    }
    lines.push_back(SubText(heap, text, begin, keep_ends ? next : end));
    begin = next;
  }
  return lines;
}

Value InCase(Heap& heap, const Text& text, Casing casing) {
  const std::string_view bytes = text.bytes;
  TextBuilder out(heap);
  std::string piece;
  heap.Work(bytes.size() / 16);
  bool inside = false;  // of a word, whose first character has been seen
  // Python sees each word of the filter title alone: what is lower case there begins here.
  size_t word = 0;
  for (size_t at = 0; at < bytes.size() && !heap.exhausted();) {
    const size_t end = at + Utf8Length(bytes[at]);
    const char32_t c = Utf8At(bytes, at);
    piece.clear();
    switch (casing) {
      case Casing::kLower:
        AppendLower(bytes, at, piece);
        break;
      case Casing::kUpper:
        AppendUpper(c, piece);
        break;
      case Casing::kTitle:
        inside ? AppendLower(bytes, at, piece) : AppendTitle(c, piece);
        inside = IsCased(c);
        break;
      case Casing::kCapitalize:
        inside ? AppendLower(bytes, at, piece) : AppendTitle(c, piece);
        inside = true;
        break;
      case Casing::kWordTitle:
        if (SeparatesWords(c)) {
          piece = bytes.substr(at, end - at);
          inside = false;
        } else if (!inside) {
          AppendUpper(c, piece);
          inside = true;
          word = end;
        } else {
          size_t stop = end;
          if (c == 0x3A3) {
            while (stop < bytes.size() && !SeparatesWords(Utf8At(bytes, stop))) {
              stop += Utf8Length(bytes[stop]);
            }
            heap.Work((stop - end) / 16);
          }
          AppendLower(bytes.substr(word, stop - word), at - word, piece);
        }
        break;
    }
    out.Append(piece, IsOwn(text, at));
    at = end;
  }
  return out.Finish();
}

std::vector<Native> TextPartMethods() {
  return {
      {"capitalize", &CaseMethod<Casing::kCapitalize>},
      {"lower", &CaseMethod<Casing::kLower>},
      {"title", &CaseMethod<Casing::kTitle>},
      {"upper", &CaseMethod<Casing::kUpper>},
      {"lstrip", [](Context& context, const Value& receiver,
                    Call& call) { return StripMethod(context, receiver, call, true, false); }},
      {"rstrip", [](Context& context, const Value& receiver,
                    Call& call) { return StripMethod(context, receiver, call, false, true); }},
      {"strip", [](Context& context, const Value& receiver,
                   Call& call) { return StripMethod(context, receiver, call, true, true); }},
      {"rsplit", [](Context& context, const Value& receiver,
                    Call& call) { return Split(context, receiver, call, true); }},
      {"split", [](Context& context, const Value& receiver,
                   Call& call) { return Split(context, receiver, call, false); }},
      {"splitlines",
       [](Context& context, const Value& receiver, Call& call) -> absl::StatusOr<Value> {
         const auto arguments = Arguments::Bind("splitlines", call, {"keepends"});
         if (!arguments.ok()) return arguments.status();
         return MakeList(context.heap, Lines(context.heap, receiver.text(), arguments->Truth(0)));
       }},
  };
}

}  // namespace eta::jinja
