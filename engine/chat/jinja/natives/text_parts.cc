#include "engine/chat/jinja/natives/text_parts.h"

#include <string>

#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/values/text_builder.h"
#include "engine/chat/jinja/values/unicode.h"

namespace eta::jinja {
namespace {

bool IsStripped(std::string_view text, size_t at,
                const std::optional<std::string_view>& characters) {
  if (!characters) return IsSpace(Utf8At(text, at));
  return characters->find(text.substr(at, Utf8Length(text[at]))) != std::string_view::npos;
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
  heap.WorkOnBytes(bytes.size());
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

Value InCase(Heap& heap, const Text& text, Casing casing) {
  const std::string_view bytes = text.bytes;
  TextBuilder out(heap);
  std::string piece;
  heap.Work(bytes.size() / 4);  // a character takes four times as long as where text is copied
  bool inside = false;          // of a word, whose first character has been seen
  for (size_t at = 0; at < bytes.size() && !heap.exhausted(); at += Utf8Length(bytes[at])) {
    const char32_t c = Utf8At(bytes, at);
    const bool upper = casing == Casing::kUpper;
    const bool first = !inside && (casing == Casing::kTitle || casing == Casing::kCapitalize);
    piece.clear();
    AppendUtf8(upper ? ToUpper(c) : first ? ToTitle(c) : ToLower(c), piece);
    out.Append(piece, IsOwn(text, at));
    inside = casing == Casing::kCapitalize || IsCased(c);
  }
  return out.Finish();
}

}  // namespace eta::jinja
