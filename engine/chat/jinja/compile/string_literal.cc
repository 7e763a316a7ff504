// lint: untrusted-input, fuzz-covered
#include <optional>

#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/compile/token.h"

namespace eta::jinja {
namespace {

// Up to `most` digits of `base` from `at` on; moves `at` past them.
std::optional<char32_t> Number(std::string_view text, size_t& at, size_t most, unsigned base) {
  char32_t number = 0;
  size_t count = 0;
  for (; count < most && at < text.size(); ++count, ++at) {
    const char c = text[at];
    const unsigned digit = c >= '0' && c <= '9'   ? static_cast<unsigned>(c - '0')
                           : c >= 'a' && c <= 'f' ? static_cast<unsigned>(c - 'a' + 10)
                           : c >= 'A' && c <= 'F' ? static_cast<unsigned>(c - 'A' + 10)
                                                  : base;
    if (digit >= base) break;
    // cannot wrap: at most eight digits of base 16
    number = number * base + digit;
  }
  if (count == 0) return std::nullopt;
  return number;
}

std::optional<char> Simple(char c) {
  switch (c) {
    case '\\':
    case '\'':
    case '"':
      return c;
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'v':
      return '\v';
    default:
      return std::nullopt;
  }
}

}  // namespace

absl::StatusOr<std::string> Unquote(std::string_view literal) {
  const std::string_view text = literal.substr(1, literal.size() - 2);
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  while (at < text.size()) {
    if (text[at] != '\\') {
      out += text[at++];
      continue;
    }
    const char c = text[at + 1];  // the lexer has seen that there is one
    if (c == '\n') {
      at += 2;
    } else if (const auto simple = Simple(c)) {
      out += *simple;
      at += 2;
    } else if (c >= '0' && c <= '7') {
      ++at;
      AppendUtf8(*Number(text, at, 3, 8), out);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      at += 2;
      const size_t begin = at;
      const auto number = Number(text, at, digits, 16);
      if (!number || at - begin != digits || *number > 0x10FFFF) {
        return absl::InvalidArgumentError("a string has an escape that is cut short or too large");
      }
      if (*number >= 0xD800 && *number < 0xE000) {
        return absl::UnimplementedError("surrogates in strings are not known here");
      }
      AppendUtf8(*number, out);
    } else if (c == 'N') {
      return absl::UnimplementedError("characters by name (\\N) are not known here");
    } else {
      out += '\\';  // Python keeps what it does not know
      ++at;
    }
  }
  return out;
}

}  // namespace eta::jinja
