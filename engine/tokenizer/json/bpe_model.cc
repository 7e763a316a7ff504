// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/json/bpe_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/json/byte_alphabet.h"

namespace eta {
namespace {

// Pieces of at most so many bytes are not cut further: most are words, which would not be anyway.
constexpr size_t kWordBytes = 64;

absl::Status Invalid(const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: ", sentence));
}

}  // namespace

absl::StatusOr<VocabularyIds> IndexVocabulary(const TokenizerTables& tables) {
  VocabularyIds ids;
  ids.reserve(tables.vocabulary.size());
  std::vector<bool> taken(kMaxVocabulary);
  for (size_t i = 0; i < tables.vocabulary.size(); ++i) {
    const int32_t id = tables.ids[i];
    if (taken[static_cast<size_t>(id)]) {
      return Invalid(absl::StrCat("model.vocab: id ", id, " is there twice"));
    }
    taken[static_cast<size_t>(id)] = true;
    if (!ids.emplace(tables.vocabulary[i], id).second) {
      return Invalid(absl::StrCat("model.vocab: the token of id ", id, " is there twice"));
    }
  }
  return ids;
}

bool IsUnit(std::string_view spelled, bool byte_level) {
  if (!byte_level) return IsCharacter(spelled);
  const std::optional<std::string> bytes = BytesOfSpelled(spelled);
  return bytes && bytes->size() == 1;
}

absl::StatusOr<std::unique_ptr<const BpeModel>> BpeModel::Make(const TokenizerTables& tables,
                                                               const VocabularyIds& vocabulary,
                                                               BpeOptions options) {
  std::unique_ptr<BpeModel> model(new BpeModel(std::move(options)));
  RETURN_IF_ERROR(model->AddTokens(tables, vocabulary));
  RETURN_IF_ERROR(model->AddMerges(tables, vocabulary));
  return std::unique_ptr<const BpeModel>(std::move(model));
}

bool BpeModel::IsNeverMade(int32_t id) const {
  const auto place = static_cast<size_t>(id);
  return place < options_.never_made.size() && options_.never_made[place];
}

void BpeModel::AddUnit(std::string_view token, int32_t id) {
  if (options_.byte_level) {
    if (token.size() == 1) small_[static_cast<uint8_t>(token.front())] = id;
  } else if (IsCharacter(token)) {
    const char32_t code = CharacterAt(token, 0).code;
    if (code < 0x80) small_[code] = id;
    characters_[code] = id;
  }
}

absl::Status BpeModel::AddTokens(const TokenizerTables& tables, const VocabularyIds& vocabulary) {
  small_.fill(-1);
  byte_ids_.fill(-1);
  for (size_t i = 0; i < tables.vocabulary.size(); ++i) {
    if (IsNeverMade(tables.ids[i])) continue;
    const std::string_view spelled = tables.vocabulary[i];
    std::string token(spelled);
    if (options_.byte_level) {
      // One with other characters is never made from text.
      std::optional<std::string> bytes = BytesOfSpelled(spelled);
      if (!bytes) continue;
      token = *std::move(bytes);
    }
    AddUnit(token, tables.ids[i]);
    max_token_bytes_ = std::max(max_token_bytes_, token.size());
    if (options_.ignore_merges) words_.emplace(std::move(token), tables.ids[i]);
  }
  if (options_.byte_fallback) {
    for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
      const std::string spelled = absl::StrFormat("<0x%02X>", byte);
      if (const auto found = vocabulary.find(spelled); found != vocabulary.end()) {
        byte_ids_[byte] = found->second;
      }
    }
    has_all_bytes_ = std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  }
  if (options_.unk_token) {
    const auto found = vocabulary.find(*options_.unk_token);
    if (found == vocabulary.end()) return Invalid("model.unk_token is not in the vocabulary");
    unk_id_ = found->second;
  }
  return absl::OkStatus();
}

absl::Status BpeModel::AddMerges(const TokenizerTables& tables, const VocabularyIds& vocabulary) {
  const auto find = [&vocabulary](std::string_view token) {
    const auto found = vocabulary.find(token);
    return found == vocabulary.end() ? -1 : found->second;
  };
  const auto is_odd = [this](int32_t id) {
    return id == unk_id_ || std::find(byte_ids_.begin(), byte_ids_.end(), id) != byte_ids_.end();
  };
  bool odd_ones_merge = false;
  // From the last on: of two merges of the same pair, the last counts.
  for (size_t i = tables.merge_left.size(); i-- > 0;) {
    std::string_view left = tables.merge_left[i];
    std::string_view right = tables.merge_right[i];
    const std::string place = absl::StrCat("model.merges[", i, "]: ");
    if (left.empty() || right.empty()) return Invalid(place + "one of its parts is empty");
    const int32_t left_id = find(left);
    const int32_t right_id = find(right);
    const std::string both = absl::StrCat(std::string(left), std::string(right));
    const int32_t made_id = find(both);
    if (left_id < 0) return Invalid(place + "its left part is not in the vocabulary");
    if (right_id < 0) return Invalid(place + "its right part is not in the vocabulary");
    if (made_id < 0) return Invalid(place + "what it makes is not in the vocabulary");
    if (IsNeverMade(made_id)) continue;
    std::string left_bytes(left);
    std::string right_bytes(right);
    if (options_.byte_level) {
      std::optional<std::string> left_spelled = BytesOfSpelled(left);
      std::optional<std::string> right_spelled = BytesOfSpelled(right);
      if (!left_spelled || !right_spelled) continue;  // never made from text
      left_bytes = *std::move(left_spelled);
      right_bytes = *std::move(right_spelled);
    }
    odd_ones_merge = odd_ones_merge || is_odd(left_id) || is_odd(right_id);
    merges_.Insert(left_id, right_id, {.piece = made_id, .rank = static_cast<uint32_t>(i) + 1});
    const char32_t before = options_.byte_level ? static_cast<uint8_t>(left_bytes.back())
                                                : LastCharacter(left_bytes).code;
    const char32_t behind = options_.byte_level ? static_cast<uint8_t>(right_bytes.front())
                                                : CharacterAt(right_bytes, 0).code;
    joints_.Insert(static_cast<int32_t>(before), static_cast<int32_t>(behind),
                   {.piece = 0, .rank = 0});
  }
  cuts_at_unknown_ = !odd_ones_merge;
  const bool all_units =
      options_.byte_level && std::find(small_.begin(), small_.end(), -1) == small_.end();
  if (!all_units && !has_all_bytes_) {
    const bool unbounded = unk_id_ >= 0 && options_.fuse_unk;
    max_token_bytes_ = unbounded ? 0 : std::max<size_t>(max_token_bytes_, 4);
  }
  return absl::OkStatus();
}

BpeModel::Unit BpeModel::UnitAt(std::string_view text, size_t at) const {
  const auto byte = static_cast<uint8_t>(text[at]);
  if (options_.byte_level || byte < 0x80) return {byte, 1, small_[byte]};
  const Character character = CharacterAt(text, at);
  const auto found = characters_.find(character.code);
  return {character.code, character.size, found == characters_.end() ? -1 : found->second};
}

size_t BpeModel::PartEnd(std::string_view piece, size_t at) const {
  Unit last = UnitAt(piece, at);
  for (at += last.size; at < piece.size(); at += last.size) {
    const Unit next = UnitAt(piece, at);
    const bool last_known = last.id >= 0;
    const bool next_known = next.id >= 0;
    if (last_known && next_known) {
      if (!joints_.Find(static_cast<int32_t>(last.code), static_cast<int32_t>(next.code))) break;
    } else if ((last_known || next_known) && cuts_at_unknown_) {
      break;
    }
    last = next;
  }
  return at;
}

std::optional<size_t> BpeModel::Encode(std::string_view piece, BpeScratch& scratch,
                                       std::vector<int32_t>& ids) const {
  // What is kept in the cache: whole pieces, where those may be tokens by themselves, else parts.
  if (options_.ignore_merges) {
    if (TakeKept(piece, scratch, ids)) return std::nullopt;
    const size_t before = ids.size();
    const auto word = words_.find(std::string(piece));
    if (word != words_.end()) {
      ids.push_back(word->second);
    } else {
      for (size_t at = 0; at < piece.size();) {
        const size_t end = PartEnd(piece, at);
        if (const auto place = Merge(piece.substr(at, end - at), scratch, ids)) return at + *place;
        at = end;
      }
    }
    if (scratch.cache) scratch.cache->Keep(piece, std::span(ids).subspan(before));
    return std::nullopt;
  }
  const bool is_word = options_.byte_level && piece.size() <= kWordBytes;
  for (size_t at = 0; at < piece.size();) {
    const size_t end = is_word ? piece.size() : PartEnd(piece, at);
    const std::string_view part = piece.substr(at, end - at);
    if (!TakeKept(part, scratch, ids)) {
      const size_t before = ids.size();
      if (const auto place = Merge(part, scratch, ids)) return at + *place;
      if (scratch.cache) scratch.cache->Keep(part, std::span(ids).subspan(before));
    }
    at = end;
  }
  return std::nullopt;
}

bool BpeModel::TakeKept(std::string_view text, const BpeScratch& scratch,
                        std::vector<int32_t>& ids) const {
  if (!scratch.cache) return false;
  const std::span<const int32_t> kept = scratch.cache->Find(text);
  ids.insert(ids.end(), kept.begin(), kept.end());
  return !kept.empty();
}

std::optional<size_t> BpeModel::Merge(std::string_view part, BpeScratch& scratch,
                                      std::vector<int32_t>& ids) const {
  SymbolMerger& merger = scratch.merger;
  merger.symbols().clear();
  if (const auto place = AddSymbols(part, merger)) return place;
  merger.Merge(merges_);
  for (int32_t i = 0; i >= 0; i = merger.symbols()[i].next) ids.push_back(merger.symbols()[i].id);
  return std::nullopt;
}

std::optional<size_t> BpeModel::AddSymbols(std::string_view part, SymbolMerger& merger) const {
  bool unknown = false;  // an unknown token is due, before the next character that is known
  const auto add = [&merger](int32_t id) { merger.Add(0, 1, id); };
  for (size_t at = 0; at < part.size();) {
    const Unit unit = UnitAt(part, at);
    if (unit.id >= 0) {
      if (std::exchange(unknown, false)) add(unk_id_);
      add(unit.id);
    } else {
      std::string spelled(part.substr(at, unit.size));
      if (options_.byte_level) {
        spelled.clear();
        AppendUtf8(CharacterOfByte(static_cast<uint8_t>(unit.code)), spelled);
      }
      if (!AddBytes(spelled, merger)) {
        if (unk_id_ < 0) return at;
        if (unknown && !options_.fuse_unk) add(unk_id_);
        unknown = true;
      }
    }
    at += unit.size;
  }
  if (unknown) add(unk_id_);
  return std::nullopt;
}

bool BpeModel::AddBytes(std::string_view spelled, SymbolMerger& merger) const {
  if (!options_.byte_fallback) return false;
  for (const char c : spelled) {
    if (byte_ids_[static_cast<uint8_t>(c)] < 0) return false;
  }
  for (const char c : spelled) merger.Add(0, 1, byte_ids_[static_cast<uint8_t>(c)]);
  return true;
}

}  // namespace eta
