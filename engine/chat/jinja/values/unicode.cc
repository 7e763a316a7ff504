#include "engine/chat/jinja/values/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/values/special_casing.h"

namespace eta::jinja {
namespace {

struct CodeRange {
  char32_t first;
  char32_t last;
};

// Other_Lowercase and Other_Uppercase of PropList.txt.
constexpr std::array<CodeRange, 24> kOtherLowercase = {{
    {0xAA, 0xAA},       {0xBA, 0xBA},       {0x2B0, 0x2B8},     {0x2C0, 0x2C1},
    {0x2E0, 0x2E4},     {0x345, 0x345},     {0x37A, 0x37A},     {0x1D2C, 0x1D6A},
    {0x1D78, 0x1D78},   {0x1D9B, 0x1DBF},   {0x2071, 0x2071},   {0x207F, 0x207F},
    {0x2090, 0x209C},   {0x2170, 0x217F},   {0x24D0, 0x24E9},   {0x2C7C, 0x2C7D},
    {0xA69C, 0xA69D},   {0xA770, 0xA770},   {0xA7F8, 0xA7F9},   {0xAB5C, 0xAB5F},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA},
}};
constexpr std::array<CodeRange, 5> kOtherUppercase = {{
    {0x2160, 0x216F},
    {0x24B6, 0x24CF},
    {0x1F130, 0x1F149},
    {0x1F150, 0x1F169},
    {0x1F170, 0x1F189},
}};
// Numeric_Type=Digit of UnicodeData.txt.
constexpr std::array<CodeRange, 20> kDigits = {{
    {0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
    {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
    {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
    {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A},
}};
// MidLetter, MidNumLet and Single_Quote of WordBreakProperty.txt: ignored beside a final sigma.
constexpr std::array<CodeRange, 16> kWordMiddles = {{
    {0x27, 0x27},
    {0x2E, 0x2E},
    {0x3A, 0x3A},
    {0xB7, 0xB7},
    {0x387, 0x387},
    {0x55F, 0x55F},
    {0x5F4, 0x5F4},
    {0x2018, 0x2019},
    {0x2024, 0x2024},
    {0x2027, 0x2027},
    {0xFE13, 0xFE13},
    {0xFE52, 0xFE52},
    {0xFE55, 0xFE55},
    {0xFF07, 0xFF07},
    {0xFF0E, 0xFF0E},
    {0xFF1A, 0xFF1A},
}};

template <size_t n>
bool InRanges(const std::array<CodeRange, n>& ranges, char32_t character) {
  const auto range =
      std::lower_bound(ranges.begin(), ranges.end(), character,
                       [](const CodeRange& other, char32_t c) { return other.last < c; });
  return range != ranges.end() && range->first <= character;
}

utf8proc_category_t Category(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

bool IsCaseIgnorable(char32_t character) {
  switch (Category(character)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return InRanges(kWordMiddles, character);
  }
}

const SpecialCasing* Special(char32_t character) {
  const auto entry =
      std::lower_bound(kSpecialCasing.begin(), kSpecialCasing.end(), character,
                       [](const SpecialCasing& other, char32_t c) { return other.character < c; });
  return entry != kSpecialCasing.end() && entry->character == character ? entry : nullptr;
}

constexpr char32_t kSigma = 0x3A3;

// Cased characters before and none after it, whatever is ignored between.
bool IsFinalSigma(std::string_view text, size_t at) {
  bool cased_before = false;
  for (size_t before = at; before > 0;) {
    before = Utf8Before(text, before);
    const char32_t character = Utf8At(text, before);
    if (IsCaseIgnorable(character)) continue;
    cased_before = IsCased(character);
    break;
  }
  if (!cased_before) return false;
  for (size_t after = at + Utf8Length(text[at]); after < text.size();
       after += Utf8Length(text[after])) {
    const char32_t character = Utf8At(text, after);
    if (!IsCaseIgnorable(character)) return !IsCased(character);
  }
  return true;
}

}  // namespace

bool IsSpace(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsAlpha(char32_t character) {
  const utf8proc_category_t category = Category(character);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDecimal(char32_t character) {
  return Category(character) == UTF8PROC_CATEGORY_ND;
}

bool IsDigit(char32_t character) {
  return IsDecimal(character) || InRanges(kDigits, character);
}

bool IsAlnum(char32_t character) {
  const utf8proc_category_t category = Category(character);
  return IsAlpha(character) ||
         (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

bool IsLower(char32_t character) {
  return Category(character) == UTF8PROC_CATEGORY_LL || InRanges(kOtherLowercase, character);
}

bool IsUpper(char32_t character) {
  return Category(character) == UTF8PROC_CATEGORY_LU || InRanges(kOtherUppercase, character);
}

bool IsTitle(char32_t character) {
  return Category(character) == UTF8PROC_CATEGORY_LT;
}

bool IsCased(char32_t character) {
  return IsLower(character) || IsUpper(character) || IsTitle(character);
}

bool IsPrintable(char32_t character) {
  if (character == ' ') return true;
  switch (Category(character)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

void AppendUpper(char32_t character, std::string& out) {
  if (character < 0x80) {
    out += static_cast<char>(character >= 'a' && character <= 'z' ? character - 32 : character);
  } else if (const SpecialCasing* special = Special(character)) {
    out += special->upper;
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(character))),
               out);
  }
}

void AppendTitle(char32_t character, std::string& out) {
  if (character < 0x80) {
    AppendUpper(character, out);
  } else if (const SpecialCasing* special = Special(character)) {
    out += special->title;
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(character))),
               out);
  }
}

void AppendLower(std::string_view text, size_t at, std::string& out) {
  const char32_t character = Utf8At(text, at);
  if (character < 0x80) {
    out += static_cast<char>(character >= 'A' && character <= 'Z' ? character + 32 : character);
  } else if (character == kSigma) {
    out += IsFinalSigma(text, at) ? "\u03C2" : "\u03C3";
  } else if (character == 0x130) {
    out += "i\u0307";
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))),
               out);
  }
}

}  // namespace eta::jinja
