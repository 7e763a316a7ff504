// lint: untrusted-input, fuzz-covered
#include "engine/format/schema/patterns/char_set.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace eta::schema {
namespace {

constexpr char32_t kLast = 0x10FFFF;

bool IsPlainLetter(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

std::string Escaped(char32_t c) {
  if (IsPlainLetter(c)) return std::string(1, static_cast<char>(c));
  if (c < 0x80) return absl::StrFormat("\\x%02x", static_cast<uint32_t>(c));
  return absl::StrFormat("\\u{%x}", static_cast<uint32_t>(c));
}

}  // namespace

CharSet CharSet::All() {
  CharSet set;
  set.Add(0, kLast);
  return set;
}

CharSet CharSet::Digits() {
  CharSet set;
  set.Add('0', '9');
  return set;
}

CharSet CharSet::WordLetters() {
  CharSet set = Digits();
  set.Add('A', 'Z');
  set.Add('_', '_');
  set.Add('a', 'z');
  return set;
}

CharSet CharSet::Spaces() {
  CharSet set = LineEnds();
  set.Add('\t', '\r');
  set.Add(' ', ' ');
  for (const char32_t space : {0xA0, 0x1680, 0x202F, 0x205F, 0x3000, 0xFEFF}) set.Add(space, space);
  set.Add(0x2000, 0x200A);
  return set;
}

CharSet CharSet::LineEnds() {
  CharSet set;
  set.Add('\n', '\n');
  set.Add('\r', '\r');
  set.Add(0x2028, 0x2029);
  return set;
}

CharSet CharSet::PlainInJson() {
  CharSet set;
  set.Add(0, 0x1F);
  set.Add('"', '"');
  set.Add('\\', '\\');
  return set.Complement();
}

void CharSet::Add(char32_t from, char32_t to) {
  const auto first =
      std::lower_bound(ranges_.begin(), ranges_.end(), from,
                       [](const auto& range, char32_t begin) { return range.second + 1 < begin; });
  auto last = first;
  for (; last != ranges_.end() && last->first <= to + 1; ++last) {
    from = std::min(from, last->first);
    to = std::max(to, last->second);
  }
  ranges_.insert(ranges_.erase(first, last), {from, to});
}

void CharSet::Add(const CharSet& other) {
  for (const auto& [from, to] : other.ranges_) Add(from, to);
}

CharSet CharSet::Complement() const {
  CharSet rest;
  char32_t next = 0;
  for (const auto& [from, to] : ranges_) {
    if (from > next) rest.ranges_.emplace_back(next, from - 1);
    next = to + 1;
  }
  if (next <= kLast) rest.ranges_.emplace_back(next, kLast);
  return rest;
}

CharSet CharSet::And(const CharSet& other) const {
  CharSet neither = Complement();
  neither.Add(other.Complement());
  return neither.Complement();
}

bool CharSet::Contains(char32_t character) const {
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), character,
                       [](char32_t c, const auto& range) { return c < range.first; });
  return after != ranges_.begin() && std::prev(after)->second >= character;
}

std::string CharSet::Text() const {
  CharSet halves;
  halves.Add(0xD800, 0xDFFF);
  const CharSet whole = And(halves.Complement());
  std::string text = "[";
  for (const auto& [from, to] : whole.ranges_) {
    text += Escaped(from);
    if (to > from) text += "-" + Escaped(to);
  }
  return text + "]";
}

}  // namespace eta::schema
