// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/piece_codec.h"

#include <string>
#include <utility>

#include "absl/strings/str_replace.h"

namespace eta {
namespace {

constexpr char kSpaceMark[] = "\xE2\x96\x81";  // U+2581

std::string BytesOf(const Piece& piece, const PieceTable& table) {
  switch (piece.type) {
    case PieceType::kControl:
      return "";
    case PieceType::kUnknown:
      return table.unknown_text;
    case PieceType::kByte:
      return std::string(1, static_cast<char>(ByteOf(piece.text)));
    default:
      return absl::StrReplaceAll(piece.text, {{kSpaceMark, " "}});
  }
}

// The space that Encode puts before a text.
bool DropsLeadingSpace(const Piece& piece, const PieceTable& table) {
  return table.add_dummy_prefix && piece.text.starts_with(kSpaceMark) &&
         (piece.type == PieceType::kNormal || piece.type == PieceType::kUserDefined);
}

}  // namespace

PieceCodec::PieceCodec(PieceTable pieces, int32_t bos_id) : model_(std::move(pieces)) {
  const PieceTable& table = model_.table();
  std::vector<PieceMatcher::Entry> special;
  for (const Piece& piece : table.pieces) {
    if (piece.type == PieceType::kControl) {
      const auto id = static_cast<int32_t>(tokens_.spelled.size());
      special.emplace_back(piece.text, id);
      tokens_.special.push_back(id);
    }
    const std::string bytes = BytesOf(piece, table);
    tokens_.spelled.Add(piece.text);
    tokens_.bytes.Add(bytes);
    tokens_.first.Add(std::string_view(bytes).substr(DropsLeadingSpace(piece, table) ? 1 : 0));
  }
  special_ = PieceMatcher(std::move(special));
  if (bos_id >= 0) beginning_ = {bos_id};
}

absl::StatusOr<std::vector<int32_t>> PieceCodec::Encode(std::string_view text,
                                                        std::span<const ByteRange> control) const {
  if (control.empty()) return model_.Encode(text);
  std::vector<int32_t> ids;
  const auto add_text = [&](std::string_view stretch) {
    const std::vector<int32_t> encoded = model_.Encode(stretch);
    ids.insert(ids.end(), encoded.begin(), encoded.end());
  };
  size_t begin = 0;  // of the stretch that `at` is in
  for (size_t i = 0; i < control.size();) {
    const size_t from = control[i].begin;
    size_t end = control[i].end;
    for (++i; i < control.size() && control[i].begin == end; ++i) end = control[i].end;
    for (size_t at = from; at < end;) {
      const PieceMatcher::Match special = special_.Longest(text.substr(at, end - at));
      if (!special) {
        ++at;
        continue;
      }
      add_text(text.substr(begin, at - begin));
      ids.push_back(special.id);
      at += special.size;
      begin = at;
    }
  }
  add_text(text.substr(begin));
  return ids;
}

}  // namespace eta
