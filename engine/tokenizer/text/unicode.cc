// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/text/unicode.h"

#include <utf8proc.h>

#include <map>

namespace eta {
namespace {

constexpr char32_t kCodes = 0x110000;

bool HasWhiteSpaceProperty(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

// Of category So, yet alphabetic: letters in circles and squares. And joiners.
bool IsOtherWord(char32_t code) {
  return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
         (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189) ||
         code == 0x200C || code == 0x200D;
}

CharacterClass OfCategory(utf8proc_category_t category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return kUpperLetter | kWord;
    case UTF8PROC_CATEGORY_LL:
      return kLowerLetter | kWord;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kOtherLetter | kWord;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark | kWord;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
      return kNumber | kWord;
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    case UTF8PROC_CATEGORY_PC:
      return kPunctuation | kWord;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return kPunctuation;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return kSymbol;
    default:
      return 0;
  }
}

CharacterClass ClassOf(char32_t code) {
  auto bits = OfCategory(utf8proc_category(static_cast<utf8proc_int32_t>(code)));
  if (IsOtherWord(code)) bits |= kWord;
  if (HasWhiteSpaceProperty(code)) bits |= kWhiteSpace;
  if (code == '\n' || code == '\r') bits |= kNewline;
  return bits;
}

}  // namespace

const CharacterClasses& CharacterClasses::Get() {
  static const CharacterClasses classes;
  return classes;
}

CharacterClasses::CharacterClasses() {
  std::map<std::vector<CharacterClass>, uint16_t> known;
  std::vector<CharacterClass> block(256);
  for (char32_t begin = 0; begin < kCodes; begin += 256) {
    for (char32_t i = 0; i < 256; ++i) block[i] = ClassOf(begin + i);
    const auto [place, is_new] = known.emplace(block, static_cast<uint16_t>(table_.size() >> 8));
    if (is_new) table_.insert(table_.end(), block.begin(), block.end());
    blocks_[begin >> 8] = place->second;
  }
  for (uint8_t code = 0; code < 128; ++code) ascii_[code] = table_[code];
}

void AppendLowercase(char32_t code, std::string& text) {
  if (code < 0x80) {
    text += static_cast<char>(code >= 'A' && code <= 'Z' ? code + ('a' - 'A') : code);
    return;
  }
  if (code == 0x130) {
    text += "i\xCC\x87";
    return;
  }
  const utf8proc_int32_t lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(code));
  AppendUtf8(static_cast<char32_t>(lower), text);
}

}  // namespace eta
