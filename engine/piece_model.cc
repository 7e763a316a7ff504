#include "engine/piece_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/merge_queue.h"

namespace eta {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

// A part of a text has at least so many symbols, where that can be: what few symbols need stays in
// the processor's caches.
constexpr size_t kPartSymbols = 4096;

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// A place in a text: between two characters.
uint64_t JointKey(std::string_view before, std::string_view after) {
  uint64_t key = 0;
  for (const std::string_view character : {before, after}) {
    uint64_t code = 0;
    for (const char c : character) code = code << 8 | static_cast<uint8_t>(c);
    key = key << 32 | code;
  }
  return key;
}

size_t CharacterLength(char first) {
  const auto lead = static_cast<uint8_t>(first);
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

std::string EscapeSpaces(std::string_view text, bool add_dummy_prefix) {
  const auto spaces = static_cast<size_t>(std::count(text.begin(), text.end(), ' '));
  std::string escaped;
  escaped.reserve(text.size() + (spaces + 1) * kSpace.size());
  if (add_dummy_prefix) escaped += kSpace;
  for (const char c : text) {
    if (c == ' ') {
      escaped += kSpace;
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace

// A run of text that is a piece, or a single character. Symbols form a list; size 0: merged away.
struct PieceModel::Symbol {
  int32_t prev;
  int32_t next;
  uint32_t begin;
  uint32_t size;
  int32_t id;  // -1: a character that is in no piece
};

PieceModel::PieceModel(PieceTable table) : table_(std::move(table)) {
  byte_ids_.fill(-1);
  std::unordered_map<std::string_view, int32_t> normal_ids;
  for (size_t i = 0; i < table_.pieces.size(); ++i) {
    const Piece& piece = table_.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (piece.type == PieceType::kByte) {
      byte_ids_[static_cast<size_t>(ByteOf(piece.text))] = id;
    } else if (piece.type == PieceType::kUserDefined) {
      user_defined_.emplace_back(piece.text, id);
      starts_user_defined_[static_cast<uint8_t>(piece.text.front())] = true;
    } else if (piece.type == PieceType::kNormal) {
      normal_ids.emplace(piece.text, id);
      if (CharacterLength(piece.text.front()) == piece.text.size()) characters_[piece.text] = id;
    }
  }
  std::sort(user_defined_.begin(), user_defined_.end());
  for (const auto& entry : normal_ids) AddMerges(entry.second, normal_ids);
  RankPieces();
  for (size_t c = 0; c < ascii_.size(); ++c) {
    const char character = static_cast<char>(c);
    const auto it = characters_.find(std::string_view(&character, 1));
    ascii_[c] = it == characters_.end() ? -1 : it->second;
  }
}

void PieceModel::AddMerges(int32_t id,
                           const std::unordered_map<std::string_view, int32_t>& normal_ids) {
  const std::string_view text = table_.pieces[id].text;
  const auto symbol = [&](std::string_view part) {
    if (const auto piece = normal_ids.find(part); piece != normal_ids.end()) return piece->second;
    if (CharacterLength(part.front()) != part.size()) return -1;
    const auto next = static_cast<int32_t>(table_.pieces.size() + characters_.size());
    return characters_.emplace(part, next).first->second;
  };
  size_t before = 0;  // where the character begins that ends at the cut
  for (size_t cut = CharacterLength(text[0]); cut < text.size();) {
    const size_t next = cut + CharacterLength(text[cut]);
    const int32_t left = symbol(text.substr(0, cut));
    const int32_t right = symbol(text.substr(cut));
    if (left >= 0 && right >= 0) {
      merges_[PairKey(left, right)] = id;
      joints_.insert(JointKey(text.substr(before, cut - before), text.substr(cut, next - cut)));
    }
    before = cut;
    cut = next;
  }
}

void PieceModel::RankPieces() {
  std::vector<int32_t> by_score(table_.pieces.size());
  std::iota(by_score.begin(), by_score.end(), 0);
  const auto score = [this](int32_t id) { return table_.pieces[id].score; };
  std::sort(by_score.begin(), by_score.end(),
            [&](int32_t a, int32_t b) { return score(a) > score(b); });
  ranks_.resize(by_score.size());
  uint32_t rank = 1;
  for (size_t i = 0; i < by_score.size(); ++i) {
    if (i > 0 && score(by_score[i]) != score(by_score[i - 1])) ++rank;
    ranks_[by_score[i]] = rank;
  }
}

int32_t PieceModel::Merged(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? -1 : it->second;
}

int32_t PieceModel::CharacterSymbol(std::string_view character) const {
  if (character.size() == 1) return ascii_[static_cast<uint8_t>(character.front())];
  const auto it = characters_.find(character);
  return it == characters_.end() ? -1 : it->second;
}

const PieceModel::UserDefined* PieceModel::LongestUserDefined(std::string_view text) const {
  if (!starts_user_defined_[static_cast<uint8_t>(text.front())]) return nullptr;
  const UserDefined* longest = nullptr;
  auto begin = user_defined_.begin();
  auto end = user_defined_.end();
  for (size_t i = 0; i < text.size(); ++i) {
    // Narrow to the pieces that agree with text[0 .. i]; the shortest of them comes first.
    const auto byte = static_cast<uint8_t>(text[i]);
    begin = std::partition_point(begin, end, [i, byte](const auto& piece) {
      return piece.first.size() <= i || static_cast<uint8_t>(piece.first[i]) < byte;
    });
    end = std::partition_point(begin, end, [i, byte](const auto& piece) {
      return static_cast<uint8_t>(piece.first[i]) == byte;
    });
    if (begin == end) break;
    if (begin->first.size() == i + 1) longest = &*begin;
  }
  return longest;
}

void PieceModel::AppendUnknown(std::string_view character, bool follows_unknown,
                               std::vector<int32_t>& ids) const {
  if (table_.byte_fallback) {
    for (const char c : character) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
  } else if (!follows_unknown) {
    ids.push_back(table_.unk_id);
  }
}

std::vector<PieceModel::Symbol> PieceModel::TakePart(std::string_view text, size_t& begin) const {
  std::vector<Symbol> symbols;
  std::string_view last;  // the character before `begin`; empty: a piece that is never merged
  while (begin < text.size()) {
    const std::string_view character = text.substr(begin, CharacterLength(text[begin]));
    if (symbols.size() >= kPartSymbols && !joints_.contains(JointKey(last, character))) break;
    const UserDefined* whole = LongestUserDefined(text.substr(begin));
    const size_t size = whole != nullptr ? whole->first.size() : character.size();
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({.prev = index - 1,
                       .next = index + 1,
                       .begin = static_cast<uint32_t>(begin),
                       .size = static_cast<uint32_t>(size),
                       .id = whole != nullptr ? whole->second : CharacterSymbol(character)});
    last = whole != nullptr ? std::string_view() : character;
    begin += size;
  }
  symbols.back().next = -1;
  return symbols;
}

void PieceModel::Merge(std::vector<Symbol>& symbols) const {
  MergeQueue merges;
  const auto push = [&](int32_t left) {
    const int32_t right = left < 0 ? -1 : symbols[left].next;
    if (right < 0) return;
    const int32_t piece = Merged(symbols[left].id, symbols[right].id);
    if (piece >= 0) merges.Push(ranks_[piece], left);
  };
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) push(i);

  while (const auto merge = merges.Pop()) {
    Symbol& left = symbols[merge->left];
    if (left.size == 0 || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    const int32_t piece = Merged(left.id, right.id);
    if (piece < 0 || ranks_[piece] != merge->rank) continue;  // one of the two has changed since
    left.size += right.size;
    left.id = piece;
    right.size = 0;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].prev = merge->left;
    push(left.prev);
    push(merge->left);
  }
}

std::vector<int32_t> PieceModel::Encode(std::string_view text) const {
  const std::string all = text.empty() ? "" : EscapeSpaces(text, table_.add_dummy_prefix);
  std::vector<int32_t> ids;
  bool unknown = false;
  for (size_t begin = 0; begin < all.size();) {
    std::vector<Symbol> symbols = TakePart(all, begin);
    Merge(symbols);
    for (int32_t i = 0; i >= 0; i = symbols[i].next) {
      const Symbol& symbol = symbols[i];
      const bool follows_unknown = unknown;
      unknown = symbol.id < 0 || symbol.id >= static_cast<int32_t>(table_.pieces.size());
      if (unknown) {
        const std::string_view character = std::string_view(all).substr(symbol.begin, symbol.size);
        AppendUnknown(character, follows_unknown, ids);
      } else {
        ids.push_back(symbol.id);
      }
    }
  }
  return ids;
}

}  // namespace eta
