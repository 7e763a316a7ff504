#include "engine/piece_model.h"

#include <algorithm>
#include <optional>
#include <queue>
#include <utility>

namespace eta {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

// A run of text that is a piece, or a single character. Symbols form a list; size 0: merged away.
struct Symbol {
  int32_t prev;
  int32_t next;
  uint32_t begin;
  uint32_t size;
  int32_t id;  // -1: a character that is in no piece
};

// A pair that made a piece when it was found; stale once either symbol has changed, which its size
// tells, because symbols only grow.
struct Merge {
  float score;
  int32_t left;
  uint32_t size;
  int32_t id;  // of the piece
};

struct Later {
  bool operator()(const Merge& a, const Merge& b) const {
    return a.score < b.score || (a.score == b.score && a.left > b.left);
  }
};

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
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
  for (size_t cut = CharacterLength(text[0]); cut < text.size();
       cut += CharacterLength(text[cut])) {
    const int32_t left = symbol(text.substr(0, cut));
    const int32_t right = symbol(text.substr(cut));
    if (left >= 0 && right >= 0) merges_[PairKey(left, right)] = id;
  }
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

std::vector<int32_t> PieceModel::Encode(std::string_view text) const {
  if (text.empty()) return {};
  const std::string escaped = EscapeSpaces(text, table_.add_dummy_prefix);
  const std::string_view all = escaped;

  std::vector<Symbol> symbols;
  for (size_t begin = 0; begin < all.size();) {
    const UserDefined* whole = LongestUserDefined(all.substr(begin));
    const size_t size = whole != nullptr ? whole->first.size() : CharacterLength(all[begin]);
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back(
        {.prev = index - 1,
         .next = index + 1,
         .begin = static_cast<uint32_t>(begin),
         .size = static_cast<uint32_t>(size),
         .id = whole != nullptr ? whole->second : CharacterSymbol(all.substr(begin, size))});
    begin += size;
  }
  symbols.back().next = -1;

  const auto find_merge = [&](int32_t left) -> std::optional<Merge> {
    const int32_t right = left < 0 ? -1 : symbols[left].next;
    if (right < 0) return std::nullopt;
    const auto it = merges_.find(PairKey(symbols[left].id, symbols[right].id));
    if (it == merges_.end()) return std::nullopt;
    const uint32_t size = symbols[left].size + symbols[right].size;
    return Merge{table_.pieces[it->second].score, left, size, it->second};
  };
  std::vector<Merge> first;
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) {
    if (const auto merge = find_merge(i)) first.push_back(*merge);
  }
  std::priority_queue<Merge, std::vector<Merge>, Later> merges(Later(), std::move(first));

  while (!merges.empty()) {
    const Merge merge = merges.top();
    merges.pop();
    Symbol& left = symbols[merge.left];
    if (left.size == 0 || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    if (left.size + right.size != merge.size) continue;
    left.size = merge.size;
    left.id = merge.id;
    right.size = 0;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].prev = merge.left;
    for (const int32_t pair : {left.prev, merge.left}) {
      if (const auto next = find_merge(pair)) merges.push(*next);
    }
  }

  std::vector<int32_t> ids;
  bool unknown = false;
  for (int32_t i = 0; i >= 0; i = symbols[i].next) {
    const Symbol& symbol = symbols[i];
    const bool follows_unknown = unknown;
    unknown = symbol.id < 0 || symbol.id >= static_cast<int32_t>(table_.pieces.size());
    if (unknown) {
      AppendUnknown(all.substr(symbol.begin, symbol.size), follows_unknown, ids);
    } else {
      ids.push_back(symbol.id);
    }
  }
  return ids;
}

}  // namespace eta
