// Characters of well-formed UTF-8, and what Unicode says of them (utf8proc).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/utf8_characters.h"

namespace eta {

struct Character {
  char32_t code;
  size_t size;  // bytes
};

// REQUIRES: text is well-formed UTF-8 and a character begins at `at`.
inline Character CharacterAt(std::string_view text, size_t at) {
  return {Utf8At(text, at), Utf8Length(text[at])};
}
// One character, and no more.
inline bool IsCharacter(std::string_view text) {
  return !text.empty() && Utf8Length(text.front()) == text.size();
}
// The last character of text, which is not empty.
inline Character LastCharacter(std::string_view text) {
  return CharacterAt(text, Utf8Before(text, text.size()));
}

// Classes of characters, as bits.
using CharacterClass = uint16_t;
inline constexpr CharacterClass kUpperLetter = 1;   // Lu, Lt
inline constexpr CharacterClass kLowerLetter = 2;   // Ll
inline constexpr CharacterClass kOtherLetter = 4;   // Lm, Lo
inline constexpr CharacterClass kLetter = 7;        // L
inline constexpr CharacterClass kMark = 8;          // M
inline constexpr CharacterClass kNumber = 16;       // N
inline constexpr CharacterClass kPunctuation = 32;  // P
inline constexpr CharacterClass kSymbol = 64;       // S
inline constexpr CharacterClass kWhiteSpace = 128;  // the property White_Space
inline constexpr CharacterClass kNewline = 256;     // CR and LF
// Alphabetic, M, Nd, Pc and joiners: \w of Rust's regular expressions.
inline constexpr CharacterClass kWord = 512;

// One look-up in a table of all characters. Thread-safe.
class CharacterClasses {
 public:
  // Made at the first call.
  static const CharacterClasses& Get();

  CharacterClass operator()(char32_t code) const {
    return code < 128 ? ascii_[code] : table_[size_t{blocks_[code >> 8]} << 8 | (code & 0xFF)];
  }
  CharacterClass Ascii(uint8_t code) const { return ascii_[code]; }

 private:
  CharacterClasses();

  std::array<CharacterClass, 128> ascii_{};
  std::array<uint16_t, 0x1100> blocks_{};  // by the upper bits of a code: which block of table_
  std::vector<CharacterClass> table_;      // blocks of 256, no two the same
};

// As Rust's char::to_lowercase: one code point but for U+0130.
void AppendLowercase(char32_t code, std::string& text);

}  // namespace eta
