// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/json/byte_alphabet.h"

#include <array>

#include "engine/tokenizer/text/unicode.h"

namespace eta {
namespace {

constexpr size_t kCharacters = 0x144;  // the last one is U+0143

consteval bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

consteval std::array<char32_t, 256> MakeCharacters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    characters[byte] = StandsForItself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return characters;
}
constexpr std::array<char32_t, 256> kCharacterOfByte = MakeCharacters();

consteval std::array<int16_t, kCharacters> MakeBytes() {
  std::array<int16_t, kCharacters> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int16_t byte = 0; byte < 256; ++byte) bytes[kCharacterOfByte[byte]] = byte;
  return bytes;
}
constexpr std::array<int16_t, kCharacters> kByteOfCharacter = MakeBytes();

}  // namespace

char32_t CharacterOfByte(uint8_t byte) {
  return kCharacterOfByte[byte];
}

std::optional<std::string> BytesOfSpelled(std::string_view spelled) {
  std::string bytes;
  for (size_t at = 0; at < spelled.size();) {
    const Character character = CharacterAt(spelled, at);
    if (character.code >= kCharacters || kByteOfCharacter[character.code] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOfCharacter[character.code]);
    at += character.size;
  }
  return bytes;
}

}  // namespace eta
