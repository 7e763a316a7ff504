// A SentencePiece model file as a plain table: a bounded walk over its Protocol Buffers encoding
// (ModelProto) that trusts no length in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eta {

inline constexpr size_t kMaxPieces = size_t{1} << 20;
inline constexpr size_t kMaxPieceBytes = 1024;

enum class PieceType : uint8_t {
  kNormal = 1,
  kUnknown = 2,      // what a character outside the vocabulary becomes without byte pieces
  kControl = 3,      // begin and end of text: stands for no text and is never made from text
  kUserDefined = 4,  // always taken whole, never merged
  kByte = 6,         // "<0x41>": one byte of a character outside the vocabulary
};

struct Piece {
  std::string text;  // U+2581 stands for a space
  float score = 0.0f;
  PieceType type = PieceType::kNormal;
};

// "<0x41>" -> 0x41; -1 for anything else. Never -1 for a byte piece of a parsed table.
int ByteOf(std::string_view text);

struct PieceTable {
  std::vector<Piece> pieces;
  bool byte_fallback = false;    // if so, all 256 byte pieces are there
  bool add_dummy_prefix = true;  // text starts with a space that was not written
  std::string unknown_text;      // what the unknown piece reads as
  int32_t unk_id = -1;
  int32_t bos_id = -1;  // -1: the table has no such control piece
  int32_t eos_id = -1;
};

// BPE models that leave text as it is. INVALID_ARGUMENT for a damaged file, limits exceeded,
// pieces that are empty, not UTF-8 or there twice, a missing or second unknown piece, missing byte
// pieces. UNIMPLEMENTED, naming it, for what other models have: unigram, word and character
// models, normalisation tables, removal of extra spaces, spaces as suffixes, unused pieces.
absl::StatusOr<PieceTable> ParsePieceTable(std::string_view serialized);

}  // namespace eta
