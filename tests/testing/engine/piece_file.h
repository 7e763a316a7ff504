// Writes SentencePiece model files for tests: small files and damaged files.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace eta {

inline std::string ProtoVarint(uint64_t value) {
  std::string bytes;
  while (value > 0x7F) {
    bytes += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  return bytes + static_cast<char>(value);
}
inline std::string ProtoNumber(uint32_t field, uint64_t value) {
  return ProtoVarint(uint64_t{field} << 3) + ProtoVarint(value);
}
inline std::string ProtoBytes(uint32_t field, const std::string& bytes) {
  return ProtoVarint((uint64_t{field} << 3) | 2) + ProtoVarint(bytes.size()) + bytes;
}
inline std::string ProtoFloat(uint32_t field, float value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return ProtoVarint((uint64_t{field} << 3) | 5) + bytes;
}
inline std::string PieceMessage(const std::string& text, float score, int type) {
  return ProtoBytes(1, ProtoBytes(1, text) + ProtoFloat(2, score) + ProtoNumber(3, type));
}

// The numbers of the types are those of PieceType.
struct PieceFile {
  struct Entry {
    std::string text;
    float score = 0.0f;
    int type = 1;
  };
  bool byte_fallback = true;
  bool dummy_prefix = false;
  // These follow unknown, begin, end and, with byte_fallback, 256 byte pieces.
  std::vector<Entry> entries;

  int first_entry() const { return byte_fallback ? 3 + 256 : 3; }
  int size() const { return first_entry() + static_cast<int>(entries.size()); }

  // Appends `trainer`, `normalizer` and `rest` to these messages and to the file.
  std::string Serialize(const std::string& trainer = "", const std::string& normalizer = "",
                        const std::string& rest = "") const {
    std::string file =
        PieceMessage("<unk>", 0, 2) + PieceMessage("<s>", 0, 3) + PieceMessage("</s>", 0, 3);
    constexpr char kDigits[] = "0123456789ABCDEF";
    for (int byte = 0; byte_fallback && byte < 256; ++byte) {
      const std::string name = {'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'};
      file += PieceMessage(name, 0, 6);
    }
    for (const Entry& entry : entries) file += PieceMessage(entry.text, entry.score, entry.type);
    file += ProtoBytes(2, ProtoNumber(3, 2) + ProtoNumber(35, byte_fallback) + trainer);
    file += ProtoBytes(3, ProtoBytes(1, "identity") + ProtoNumber(3, dummy_prefix) +
                              ProtoNumber(4, 0) + normalizer);
    return file + rest;
  }
};

}  // namespace eta
