#include "engine/chat/jinja/values/unicode.h"

#include <utf8proc.h>

namespace eta::jinja {
namespace {

utf8proc_category_t Category(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

template <utf8proc_int32_t (*convert)(utf8proc_int32_t)>
char32_t Converted(char32_t character) {
  return static_cast<char32_t>(convert(static_cast<utf8proc_int32_t>(character)));
}

}  // namespace

bool IsSpace(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsLineBreak(char32_t c) {
  return (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
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

bool IsCased(char32_t character) {
  const utf8proc_category_t category = Category(character);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
}

char32_t ToLower(char32_t character) {
  return Converted<&utf8proc_tolower>(character);
}
char32_t ToUpper(char32_t character) {
  return Converted<&utf8proc_toupper>(character);
}
char32_t ToTitle(char32_t character) {
  return Converted<&utf8proc_totitle>(character);
}

}  // namespace eta::jinja
