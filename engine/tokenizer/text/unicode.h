// Characters of well-formed UTF-8, and what Unicode says of them (utf8proc).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace eta {

struct Character {
  char32_t code;
  size_t size;  // bytes
};

// REQUIRES: text is well-formed UTF-8 and a character begins at `at`.
inline Character CharacterAt(std::string_view text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  if (lead < 0x80) return {lead, 1};
  const size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t code = lead & (0xFF >> (size + 1));
  for (size_t i = 1; i < size; ++i) code = code << 6 | (static_cast<uint8_t>(text[at + i]) & 0x3F);
  return {code, size};
}
// One character, and no more.
inline bool IsCharacter(std::string_view text) {
  return !text.empty() && CharacterAt(text, 0).size == text.size();
}
// The last character of text, which is not empty.
Character LastCharacter(std::string_view text);
void AppendCharacter(char32_t code, std::string& text);

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
