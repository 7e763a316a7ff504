// Well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, no surrogates, nothing past
// U+10FFFF.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace eta {

// Byte offset of the first character of `text` that is not well formed; nullopt if all are.
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

// Turns bytes that arrive in pieces into well-formed text. A character appears once its last byte
// has come; a byte that can belong to none becomes U+FFFD as soon as that is certain. However the
// bytes are cut, the output is the same. Not thread-safe.
class Utf8Assembler {
 public:
  void Append(std::string_view bytes, std::string& out);
  // No more bytes will come: those of an unfinished character become one U+FFFD each.
  void Finish(std::string& out);

 private:
  std::string pending_;  // a proper prefix of a well-formed character, at most 3 bytes
};

}  // namespace eta
