// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/piece_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/base/utf8_characters.h"

namespace eta {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

int32_t CodePoint(std::string_view character) {
  return static_cast<int32_t>(Utf8At(character, 0));
}

// By id, from 1 on: the higher a piece's score, the lower.
std::vector<uint32_t> RankPieces(const std::vector<Piece>& pieces) {
  std::vector<int32_t> by_score(pieces.size());
  std::iota(by_score.begin(), by_score.end(), 0);
  const auto score = [&](int32_t id) { return pieces[id].score; };
  std::sort(by_score.begin(), by_score.end(),
            [&](int32_t a, int32_t b) { return score(a) > score(b); });
  std::vector<uint32_t> ranks(by_score.size());
  uint32_t rank = 1;
  for (size_t i = 0; i < by_score.size(); ++i) {
    if (i > 0 && score(by_score[i]) != score(by_score[i - 1])) ++rank;
    ranks[by_score[i]] = rank;
  }
  return ranks;
}

}  // namespace

PieceModel::Escaped PieceModel::EscapeSpaces(std::string_view text, std::string_view marks,
                                             bool add_dummy_prefix) {
  const auto spaces = static_cast<size_t>(std::count(text.begin(), text.end(), ' '));
  Escaped escaped;
  // cannot wrap: three times the size of a text that is in memory, at most
  escaped.text.reserve(text.size() + (spaces + 1) * kSpace.size());
  const auto add = [&escaped, &marks](std::string_view more, char mark) {
    escaped.text += more;
    if (!marks.empty()) escaped.marks.append(more.size(), mark);
  };
  if (add_dummy_prefix) add(kSpace, marks.empty() ? '\0' : marks.front());
  for (size_t i = 0; i < text.size(); ++i) {
    add(text[i] == ' ' ? kSpace : text.substr(i, 1), marks.empty() ? '\0' : marks[i]);
  }
  return escaped;
}

PieceModel::PieceModel(PieceTable table) : table_(std::move(table)) {
  byte_ids_.fill(-1);
  std::vector<PieceMatcher::Entry> user_defined;
  std::unordered_map<std::string_view, int32_t> normal_ids;
  for (size_t i = 0; i < table_.pieces.size(); ++i) {
    const Piece& piece = table_.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (table_.byte_fallback) max_piece_bytes_ = std::max(max_piece_bytes_, piece.text.size());
    if (piece.type == PieceType::kByte) {
      byte_ids_[static_cast<size_t>(ByteOf(piece.text))] = id;
    } else if (piece.type == PieceType::kUserDefined) {
      user_defined.emplace_back(piece.text, id);
    } else if (piece.type == PieceType::kNormal) {
      normal_ids.emplace(piece.text, id);
      const bool character = Utf8Length(piece.text.front()) == piece.text.size();
      if (character) characters_[CodePoint(piece.text)] = id;
    }
  }
  user_defined_ = PieceMatcher(std::move(user_defined));
  const std::vector<uint32_t> ranks = RankPieces(table_.pieces);
  for (const auto& entry : normal_ids) {
    AddMerges({.piece = entry.second, .rank = ranks[entry.second]}, normal_ids);
  }
  for (size_t c = 0; c < ascii_.size(); ++c) {
    const auto it = characters_.find(static_cast<int32_t>(c));
    ascii_[c] = it == characters_.end() ? -1 : it->second;
  }
}

void PieceModel::AddMerges(PairTable::Made made,
                           const std::unordered_map<std::string_view, int32_t>& normal_ids) {
  const std::string_view text = table_.pieces[made.piece].text;
  const auto symbol = [&](std::string_view part) {
    if (const auto piece = normal_ids.find(part); piece != normal_ids.end()) return piece->second;
    if (Utf8Length(part.front()) != part.size()) return -1;
    const auto next = static_cast<int32_t>(table_.pieces.size() + characters_.size());
    return characters_.emplace(CodePoint(part), next).first->second;
  };
  size_t before = 0;  // where the character begins that ends at the cut
  for (size_t cut = Utf8Length(text[0]); cut < text.size();) {
    const size_t next = cut + Utf8Length(text[cut]);
    const int32_t left = symbol(text.substr(0, cut));
    const int32_t right = symbol(text.substr(cut));
    if (left >= 0 && right >= 0) {
      merges_.Insert(left, right, made);
      joints_.Insert(CodePoint(text.substr(before, cut - before)),
                     CodePoint(text.substr(cut, next - cut)), {.piece = 0, .rank = 0});
    }
    before = cut;
    cut = next;
  }
}

int32_t PieceModel::CharacterSymbol(int32_t code) const {
  if (code < 128) return ascii_[static_cast<size_t>(code)];
  const auto it = characters_.find(code);
  return it == characters_.end() ? -1 : it->second;
}

void PieceModel::AppendUnknown(std::string_view character, bool follows_unknown,
                               std::vector<int32_t>& ids) const {
  if (table_.byte_fallback) {
    for (const char c : character) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
  } else if (!follows_unknown) {
    ids.push_back(table_.unk_id);
  }
}

void PieceModel::NextPart(const Escaped& all, const std::set<int32_t>& withheld, size_t& begin,
                          SymbolMerger& part) const {
  const std::string_view text = all.text;
  const std::string_view marks = all.marks;
  part.symbols().clear();
  int32_t last = -1;  // the character before `begin`; -1: none, or a piece that is never merged
  while (begin < text.size()) {
    const std::string_view character = text.substr(begin, Utf8Length(text[begin]));
    const int32_t code = CodePoint(character);
    if (!part.symbols().empty() && !joints_.Find(last, code)) break;
    const auto may = [&](PieceMatcher::Match match) {
      return !withheld.contains(match.id) ||
             (!marks.empty() &&
              marks.substr(begin, match.size).find('\0') == std::string_view::npos);
    };
    const PieceMatcher::Match whole = user_defined_.Longest(text.substr(begin), may);
    const size_t size = whole ? whole.size : character.size();
    part.Add(static_cast<uint32_t>(begin), static_cast<uint32_t>(size),
             whole ? whole.id : CharacterSymbol(code));
    last = whole ? -1 : code;
    begin += size;
  }
}

std::vector<int32_t> PieceModel::Encode(std::string_view text, std::string_view marks,
                                        const std::set<int32_t>& withheld) const {
  const Escaped all = text.empty() ? Escaped() : EscapeSpaces(text, marks, table_.add_dummy_prefix);
  std::vector<int32_t> ids;
  SymbolMerger part;
  bool unknown = false;
  for (size_t begin = 0; begin < all.text.size();) {
    NextPart(all, withheld, begin, part);
    part.Merge(merges_);
    for (int32_t i = 0; i >= 0; i = part.symbols()[i].next) {
      const Symbol& symbol = part.symbols()[i];
      const bool follows_unknown = unknown;
      unknown = symbol.id < 0 || symbol.id >= static_cast<int32_t>(table_.pieces.size());
      if (unknown) {
        const auto character = std::string_view(all.text).substr(symbol.begin, symbol.size);
        AppendUnknown(character, follows_unknown, ids);
      } else {
        ids.push_back(symbol.id);
      }
    }
  }
  return ids;
}

}  // namespace eta
