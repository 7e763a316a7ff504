// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/text/scanners.h"

#include <array>
#include <cstdint>

#include "engine/tokenizer/text/unicode.h"

namespace eta {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

constexpr CharacterClass kSpaceOrAlphanumeric = kWhiteSpace | kLetter | kNumber;

// A text with the classes of its characters.
class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text), classes_(CharacterClasses::Get()) {}

  size_t size() const { return text_.size(); }
  char Byte(size_t at) const { return at < text_.size() ? text_[at] : '\0'; }

  // Of the character at `at`, and where the next one begins. Behind the text: white space, so that
  // no other class is there.
  CharacterClass At(size_t at, size_t& next) const {
    if (at >= text_.size()) {
      next = at;
      return kWhiteSpace;
    }
    const auto byte = static_cast<uint8_t>(text_[at]);
    if (byte < 0x80) {
      next = at + 1;
      return classes_.Ascii(byte);
    }
    const Character character = CharacterAt(text_, at);
    next = at + character.size;
    return classes_(character.code);
  }

  // The end of the characters from `at` on that have one of these classes.
  size_t While(CharacterClass wanted, size_t at) const {
    for (size_t next = at; at < text_.size(); at = next) {
      if ((At(at, next) & wanted) == 0) break;
    }
    return at;
  }
  // Or none of them.
  size_t Until(CharacterClass unwanted, size_t at) const {
    for (size_t next = at; at < text_.size(); at = next) {
      if ((At(at, next) & unwanted) != 0) break;
    }
    return at;
  }

  // \s+(?!\S)|\s+ : white space, but for its last character where something follows.
  size_t Spaces(size_t at) const {
    size_t last = at;  // where the last one begins
    size_t end = at;
    for (size_t next = at; end < text_.size(); end = next) {
      if ((At(end, next) & kWhiteSpace) == 0) break;
      last = end;
    }
    return end < text_.size() && last > at ? last : end;
  }

  // \s*[\r\n]+ : up to the last end of a line in the white space; `at` where there is none.
  size_t Lines(size_t at) const {
    size_t end = at;
    for (size_t from = at, next = at; from < text_.size(); from = next) {
      const CharacterClass bits = At(from, next);
      if ((bits & kWhiteSpace) == 0) break;
      if ((bits & kNewline) != 0) end = next;
    }
    return end;
  }

  // 's|'t|'re|'ve|'m|'ll|'d behind an apostrophe at `at`; `at` where it is none of them.
  template <bool kIgnoreCase>
  size_t Contraction(size_t at) const {
    if (Byte(at) != '\'') return at;
    const char one = Fold<kIgnoreCase>(Byte(at + 1));
    if (one == 's' || one == 't' || one == 'm' || one == 'd') return at + 2;
    const char two = Fold<kIgnoreCase>(Byte(at + 2));
    if ((two == 'e' && (one == 'r' || one == 'v')) || (two == 'l' && one == 'l')) return at + 3;
    // U+017F, the long s, is an s to those who ignore case.
    if (kIgnoreCase && text_.substr(at + 1).starts_with("\xC5\xBF")) return at + 3;
    return at;
  }

 private:
  template <bool kIgnoreCase>
  static char Fold(char c) {
    return kIgnoreCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  }

  const std::string_view text_;
  const CharacterClasses& classes_;
};

size_t ScanGpt2(std::string_view text, size_t at) {
  const Scan scan(text);
  if (const size_t end = scan.Contraction<false>(at); end > at) return end;
  const size_t begin = at + (scan.Byte(at) == ' ' ? 1 : 0);
  size_t next = begin;
  const CharacterClass bits = scan.At(begin, next);
  if ((bits & kLetter) != 0) return scan.While(kLetter, next);
  if ((bits & kNumber) != 0) return scan.While(kNumber, next);
  if ((bits & kWhiteSpace) == 0) return scan.Until(kSpaceOrAlphanumeric, next);
  return scan.Spaces(at);
}

template <int kMaxDigits>
size_t Digits(const Scan& scan, size_t at) {
  size_t next = at;
  for (int i = 0; i < kMaxDigits; ++i, at = next) {
    if ((scan.At(at, next) & kNumber) == 0) break;
  }
  return at;
}

//  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ : what words and numbers leave over. With
// kSlash the first of them ends in [\r\n/]*.
template <bool kSlash>
size_t ScanRest(const Scan& scan, size_t at) {
  const size_t begin = at + (scan.Byte(at) == ' ' ? 1 : 0);
  size_t next = begin;
  if ((scan.At(begin, next) & kSpaceOrAlphanumeric) == 0) {
    size_t end = scan.Until(kSpaceOrAlphanumeric, next);
    while (scan.Byte(end) == '\r' || scan.Byte(end) == '\n' || (kSlash && scan.Byte(end) == '/')) {
      ++end;
    }
    return end;
  }
  const size_t lines = scan.Lines(at);
  return lines > at ? lines : scan.Spaces(at);
}

template <int kMaxDigits>
size_t ScanLlama3(std::string_view text, size_t at) {
  const Scan scan(text);
  if (const size_t end = scan.Contraction<true>(at); end > at) return end;
  size_t next = at;
  const CharacterClass bits = scan.At(at, next);
  if ((bits & kLetter) != 0) return scan.While(kLetter, next);
  if ((bits & kNumber) != 0) return Digits<kMaxDigits>(scan, at);
  if ((bits & kNewline) == 0) {
    const size_t word = scan.While(kLetter, next);
    if (word > next) return word;
  }
  return ScanRest<false>(scan, at);
}

constexpr CharacterClass kBothCases = kOtherLetter | kMark;
constexpr CharacterClass kUpperCase = kUpperLetter | kBothCases;
constexpr CharacterClass kLowerCase = kLowerLetter | kBothCases;

// [upper]*[lower]+ ; `at` where it does not match.
size_t UpperThenLower(const Scan& scan, size_t at) {
  size_t after_both = at;  // behind the last character that is of both classes
  size_t end = at;
  for (size_t next = at; end < scan.size(); end = next) {
    const CharacterClass bits = scan.At(end, next);
    if ((bits & kUpperCase) == 0) break;
    if ((bits & kBothCases) != 0) after_both = next;
  }
  const size_t lower = scan.While(kLowerCase, end);
  return lower > end ? lower : after_both;
}

// [upper]+[lower]* ; `at` where it does not match.
size_t UpperMaybeLower(const Scan& scan, size_t at) {
  const size_t end = scan.While(kUpperCase, at);
  return end > at ? scan.While(kLowerCase, end) : at;
}

template <bool kContractions>
size_t ScanCased(const Scan& scan, size_t at) {
  size_t next = at;
  const bool prefix = (scan.At(at, next) & (kNewline | kLetter | kNumber)) == 0;
  for (const auto match : {&UpperThenLower, &UpperMaybeLower}) {
    size_t end = prefix ? match(scan, next) : next;
    const bool with_prefix = prefix && end > next;
    if (!with_prefix) end = match(scan, at);
    if (with_prefix || end > at) return kContractions ? scan.Contraction<true>(end) : end;
  }
  return at;
}

template <int kMaxDigits, bool kContractions>
size_t ScanO200k(std::string_view text, size_t at) {
  const Scan scan(text);
  if (const size_t end = ScanCased<kContractions>(scan, at); end > at) return end;
  if (const size_t end = Digits<kMaxDigits>(scan, at); end > at) return end;
  return ScanRest<true>(scan, at);
}

struct Known {
  std::string_view pattern;
  Scanner scanner;
};

#define ETA_CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define ETA_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define ETA_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define ETA_PREFIX R"([^\r\n\p{L}\p{N}]?)"
#define ETA_REST R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define ETA_SLASH_REST R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"

const std::array kKnown = {
    Known{kGpt2Pattern, &ScanGpt2},
    Known{R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", &ScanGpt2},
    Known{ETA_CONTRACTIONS "|" ETA_PREFIX R"(\p{L}+|\p{N}{1,3}|)" ETA_REST, &ScanLlama3<3>},
    Known{ETA_CONTRACTIONS "|" ETA_PREFIX R"(\p{L}+|\p{N}|)" ETA_REST, &ScanLlama3<1>},
    Known{ETA_PREFIX ETA_UPPER "*" ETA_LOWER "+" ETA_CONTRACTIONS "?|" ETA_PREFIX ETA_UPPER
                               "+" ETA_LOWER "*" ETA_CONTRACTIONS R"(?|\p{N}{1,3}|)" ETA_SLASH_REST,
          &ScanO200k<3, true>},
    Known{ETA_PREFIX ETA_UPPER "*" ETA_LOWER "+|" ETA_PREFIX ETA_UPPER "+" ETA_LOWER
                               R"(*|\p{N}|)" ETA_SLASH_REST,
          &ScanO200k<1, false>},
};

}  // namespace

Scanner Gpt2Scanner() {
  return &ScanGpt2;
}

Scanner FindScanner(std::string_view pattern) {
  for (const Known& known : kKnown) {
    if (known.pattern == pattern) return known.scanner;
  }
  return nullptr;
}

}  // namespace eta
