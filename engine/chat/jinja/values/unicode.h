// Characters as Python's str sees them.
#pragma once

#include <string>
#include <string_view>

namespace eta::jinja {

bool IsSpace(char32_t character);    // str.isspace
bool IsAlpha(char32_t character);    // str.isalpha
bool IsDecimal(char32_t character);  // str.isdecimal
bool IsDigit(char32_t character);    // str.isdigit
bool IsAlnum(char32_t character);    // str.isalnum
bool IsLower(char32_t character);
bool IsUpper(char32_t character);
bool IsTitle(char32_t character);
bool IsCased(char32_t character);
bool IsPrintable(char32_t character);  // str.isprintable

// What str.upper and str.title make of one character: up to three.
void AppendUpper(char32_t character, std::string& out);
void AppendTitle(char32_t character, std::string& out);
// The character at byte `at` of the text, whose neighbours decide about the final sigma.
void AppendLower(std::string_view text, size_t at, std::string& out);

}  // namespace eta::jinja
