// Byte-pair encoding as SentencePiece does it, over a checked PieceTable.
//
// SentencePiece itself is not linked: the packaged 0.1.97 has known memory errors for crafted model
// files (CVE-2026-1260 among them) and holds 235 bytes for each byte of a prompt; the tests compare
// this encoder with it, id by id.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/checkpoint/piece_table.h"
#include "engine/tokenizer/pair_table.h"
#include "engine/tokenizer/piece_matcher.h"
#include "engine/tokenizer/symbol_merger.h"
#include "engine/tokenizer/text_codec.h"

namespace eta {

// Immutable after construction; thread-safe. Neither copied nor moved: it holds views into itself.
class PieceModel {
 public:
  explicit PieceModel(PieceTable table);
  PieceModel(const PieceModel&) = delete;
  PieceModel& operator=(const PieceModel&) = delete;

  const PieceTable& table() const { return table_; }

  // Bytes of text that one id stands for at most; 0: any number, since characters that follow one
  // another and are in no piece become one id where there are no byte pieces.
  size_t max_piece_bytes() const { return max_piece_bytes_; }

  // Ids of `text`. Starting from single characters, the adjacent pair that makes the piece of the
  // highest score (the leftmost such pair) is merged until no pair makes a piece. Parts of the text
  // between which no pair makes a piece, such as words, are encoded separately. Time n log n.
  // REQUIRES: well-formed UTF-8 of at most kMaxTextBytes.
  // `marks`: 1 or 0 for each byte of the text, or empty: all 0. User-defined pieces in `withheld`
  // count where all of their bytes are marked; elsewhere they are text.
  std::vector<int32_t> Encode(std::string_view text, std::string_view marks = {},
                              const std::set<int32_t>& withheld = {}) const;

 private:
  // A text with its spaces as pieces spell them, and its marks.
  struct Escaped {
    std::string text;
    std::string marks;
  };
  static Escaped EscapeSpaces(std::string_view text, std::string_view marks, bool add_dummy_prefix);

  // Fills `part` with the symbols of the text from `begin` up to a place that no piece reaches
  // across, and moves `begin` there.
  void NextPart(const Escaped& all, const std::set<int32_t>& withheld, size_t& begin,
                SymbolMerger& part) const;

  // Id of the symbol that a character starts as; -1: it can neither stand nor merge.
  int32_t CharacterSymbol(int32_t code) const;
  void AddMerges(PairTable::Made made,
                 const std::unordered_map<std::string_view, int32_t>& normal_ids);
  void AppendUnknown(std::string_view character, bool follows_unknown,
                     std::vector<int32_t>& ids) const;

  PieceTable table_;
  size_t max_piece_bytes_ = 0;
  // A symbol is a piece, or a character that is none but begins or ends one: ids past the pieces'.
  std::unordered_map<int32_t, int32_t> characters_;  // by code point
  PairTable merges_;                                 // pairs of symbols
  PairTable joints_;  // pairs of code points across which symbols can merge
  PieceMatcher user_defined_;
  std::array<int32_t, 128> ascii_{};  // CharacterSymbol
  std::array<int32_t, 256> byte_ids_{};
};

}  // namespace eta
