// Characters as Python's str sees them.
#pragma once

namespace eta::jinja {

bool IsSpace(char32_t character);      // str.isspace
bool IsLineBreak(char32_t character);  // where str.splitlines cuts
bool IsPrintable(char32_t character);  // str.isprintable
bool IsCased(char32_t character);      // a letter that has a case

// One character for one: "ß" has no upper case of two, and a final sigma is one like any other.
char32_t ToLower(char32_t character);
char32_t ToUpper(char32_t character);
char32_t ToTitle(char32_t character);

}  // namespace eta::jinja
