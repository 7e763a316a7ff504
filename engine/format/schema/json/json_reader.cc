// lint: untrusted-input, fuzz-covered
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/utf8.h"
#include "engine/base/utf8_characters.h"
#include "engine/format/schema/json/json_text.h"

namespace eta::schema {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

int HexValue(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool IsHighSurrogate(char32_t unit) {
  return unit >= 0xD800 && unit < 0xDC00;
}

bool IsLowSurrogate(char32_t unit) {
  return unit >= 0xDC00 && unit < 0xE000;
}

}  // namespace

class JsonReader {
 public:
  JsonReader(std::string_view text, const JsonRules& rules) : text_(text), rules_(rules) {
    // What escapes stand for is never longer than they are.
    read_.characters_.reserve(text.size());
  }

  bool Read() {
    SkipSpace();
    if (!Value({})) return false;
    while (!open_.empty()) {
      if (!Next()) return false;
    }
    SkipSpace();
    return at_ == text_.size() || Fail();
  }

  JsonText Release() { return std::move(read_); }
  std::string error() const {
    return error_.empty() ? absl::StrCat("is not JSON at byte ", at_) : error_;
  }

 private:
  bool Fail() { return false; }
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool Take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void SkipSpace() {
    while (Peek() == ' ' || Peek() == '\n' || Peek() == '\r' || Peek() == '\t') ++at_;
  }

  // The next item or member of the innermost open value, or its end.
  bool Next() {
    const uint32_t holder = open_.back();
    const bool object = read_.values_[holder].kind == JsonKind::kObject;
    SkipSpace();
    if (Take(object ? '}' : ']')) return Close(holder);
    if (read_.size() > holder + 1) {
      if (!Take(',')) return Fail();
      SkipSpace();
    }
    std::string_view key;
    if (object) {
      if (Peek() != '"' || !String(key)) return Fail();
      SkipSpace();
      if (!Take(':')) return Fail();
      SkipSpace();
    }
    return Value(key);
  }

  bool Value(std::string_view key) {
    JsonValue value;
    value.key = key;
    value.parent = open_.empty() ? 0 : open_.back();
    const char first = Peek();
    if (first == '{' || first == '[') {
      ++at_;
      if (open_.size() == rules_.max_depth) {
        return Fail(absl::StrCat("is nested over ", rules_.max_depth, " deep"));
      }
      value.kind = first == '{' ? JsonKind::kObject : JsonKind::kArray;
      open_.push_back(read_.size());
    } else if (first == '"') {
      value.kind = JsonKind::kString;
      if (!String(value.text)) return false;
    } else if (Take("null")) {
      value.kind = JsonKind::kNull;
    } else if (Take("true")) {
      value.kind = JsonKind::kTrue;
    } else if (Take("false")) {
      value.kind = JsonKind::kFalse;
    } else {
      value.kind = JsonKind::kNumber;
      if (!Number(value.text)) return Fail();
    }
    value.end = read_.size() + 1;
    read_.values_.push_back(value);
    return true;
  }

  bool Close(uint32_t holder) {
    read_.values_[holder].end = read_.size();
    open_.pop_back();
    if (!rules_.unique_keys || read_.values_[holder].kind != JsonKind::kObject) return true;
    const std::vector<uint32_t> members = read_.SortedMembers(holder);
    size_t count = 0;
    for ([[maybe_unused]] const uint32_t member : read_.ChildrenOf(holder)) ++count;
    return members.size() == count || Fail("has a key twice in one object");
  }

  bool Digits() {
    if (!IsDigit(Peek())) return false;
    while (IsDigit(Peek())) ++at_;
    return true;
  }

  bool Number(std::string_view& number) {
    const size_t begin = at_;
    Take('-');
    if (!Take('0') && !Digits()) return false;
    if (Take('.') && !Digits()) return false;
    if (Take('e') || Take('E')) {
      if (!Take('+')) Take('-');
      if (!Digits()) return false;
    }
    number = Keep(text_.substr(begin, at_ - begin));
    return true;
  }

  bool String(std::string_view& string) {
    ++at_;
    std::string characters;
    while (true) {
      if (at_ >= text_.size() || static_cast<unsigned char>(Peek()) < 0x20) return Fail();
      if (Take('"')) break;
      if (!Take('\\')) {
        characters += text_[at_++];
      } else if (!Escape(characters)) {
        return false;
      }
    }
    string = Keep(characters);
    return true;
  }

  bool Escape(std::string& characters) {
    static constexpr std::string_view kEscapes = "\"\\/bfnrt";
    static constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
    if (Take('u')) return Unicode(characters);
    const size_t escape = at_ < text_.size() ? kEscapes.find(text_[at_]) : std::string_view::npos;
    if (escape == std::string_view::npos) return Fail();
    ++at_;
    characters += kMeant[escape];
    return true;
  }

  std::optional<char32_t> Unit() {
    char32_t unit = 0;
    for (int i = 0; i < 4; ++i) {
      const int digit = HexValue(Peek());
      if (digit < 0) return std::nullopt;
      unit = unit << 4 | static_cast<char32_t>(digit);
      ++at_;
    }
    return unit;
  }

  bool Unicode(std::string& characters) {
    const std::optional<char32_t> unit = Unit();
    if (!unit) return Fail();
    char32_t character = *unit;
    if (IsHighSurrogate(character) && text_.substr(at_).starts_with("\\u")) {
      const size_t after = at_;
      at_ += 2;
      const std::optional<char32_t> low = Unit();
      if (low && IsLowSurrogate(*low)) {
        character = 0x10000 + ((character - 0xD800) << 10) + (*low - 0xDC00);
      } else {
        at_ = after;
      }
    }
    if (rules_.whole_characters && character >= 0xD800 && character < 0xE000) {
      return Fail(absl::StrCat("has half of a surrogate pair before byte ", at_));
    }
    AppendUtf8(character, characters);
    return true;
  }

  std::string_view Keep(std::string_view piece) {
    std::vector<char>& kept = read_.characters_;
    const size_t begin = kept.size();
    kept.insert(kept.end(), piece.begin(), piece.end());
    return {kept.data() + begin, piece.size()};
  }

  const std::string_view text_;
  const JsonRules& rules_;
  size_t at_ = 0;
  std::vector<uint32_t> open_;
  JsonText read_;
  std::string error_;
};

absl::StatusOr<JsonText> JsonText::Parse(std::string_view text, const JsonRules& rules) {
  if (text.size() > std::min<size_t>(rules.max_bytes, UINT32_MAX - 1)) {
    return absl::InvalidArgumentError(absl::StrCat("is over ", rules.max_bytes, " bytes"));
  }
  if (const auto offset = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat("is not UTF-8 at byte ", *offset));
  }
  JsonReader reader(text, rules);
  if (!reader.Read()) return absl::InvalidArgumentError(reader.error());
  return reader.Release();
}

}  // namespace eta::schema
