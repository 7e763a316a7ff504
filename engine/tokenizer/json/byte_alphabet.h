// The characters that byte-level vocabularies spell bytes with: those of Latin-1 that are visible
// stand for themselves, and U+0100 and what follows for the others. A space is U+0120.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace eta {

char32_t CharacterOfByte(uint8_t byte);

// The bytes that `spelled`, well-formed UTF-8, stands for; absent: it has other characters too.
std::optional<std::string> BytesOfSpelled(std::string_view spelled);

}  // namespace eta
