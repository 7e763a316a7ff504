// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/base/utf8.h"

namespace eta {
namespace {

constexpr char kSpace[] = "\xE2\x96\x81";  // U+2581

std::string BytesOf(const Piece& piece, const PieceTable& table) {
  switch (piece.type) {
    case PieceType::kControl:
      return "";
    case PieceType::kUnknown:
      return table.unknown_text;
    case PieceType::kByte:
      return std::string(1, static_cast<char>(ByteOf(piece.text)));
    default:
      return absl::StrReplaceAll(piece.text, {{kSpace, " "}});
  }
}

}  // namespace

Tokenizer::Tokenizer(PieceTable pieces) : model_(std::move(pieces)) {
  const PieceTable& table = model_->table();
  std::vector<PieceMatcher::Entry> special;
  for (const Piece& piece : table.pieces) {
    if (piece.type == PieceType::kControl) {
      special.emplace_back(piece.text, static_cast<int32_t>(pieces_.size()));
    }
    pieces_.push_back(BytesOf(piece, table));
    drops_leading_space_.push_back(
        table.add_dummy_prefix && piece.text.starts_with(kSpace) &&
        (piece.type == PieceType::kNormal || piece.type == PieceType::kUserDefined));
  }
  special_ = PieceMatcher(std::move(special));
  bos_id_ = table.bos_id;
  if (table.eos_id >= 0) eos_ids_ = {table.eos_id};
}

Tokenizer::Tokenizer(int32_t vocab_size) : pieces_(static_cast<size_t>(vocab_size)) {}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(
    std::optional<std::string_view> serialized, const ModelConfig& config) {
  std::vector<int32_t> special = config.eos_ids;
  special.push_back(config.bos_id);
  for (const int32_t id : special) {
    if (id >= config.vocab_size) {
      return absl::FailedPreconditionError(
          absl::StrCat("config.json: special id ", id, " is outside the vocabulary"));
    }
  }
  std::unique_ptr<Tokenizer> tokenizer;
  if (serialized) {
    auto table = ParsePieceTable(*serialized);
    if (!table.ok()) return table.status();
    if (table->pieces.size() != static_cast<size_t>(config.vocab_size)) {
      return absl::FailedPreconditionError(
          absl::StrCat("tokenizer model: has ", table->pieces.size(),
                       " pieces, config.json says vocab_size ", config.vocab_size));
    }
    tokenizer.reset(new Tokenizer(*std::move(table)));
  } else {
    tokenizer.reset(new Tokenizer(config.vocab_size));
  }
  if (config.bos_id >= 0) tokenizer->bos_id_ = config.bos_id;
  if (!config.eos_ids.empty()) tokenizer->eos_ids_ = config.eos_ids;
  return tokenizer;
}

std::vector<int32_t> Tokenizer::EncodeAroundSpecial(std::string_view text) const {
  std::vector<int32_t> ids;
  const auto add_text = [&](std::string_view stretch) {
    const std::vector<int32_t> encoded = model_->Encode(stretch);
    ids.insert(ids.end(), encoded.begin(), encoded.end());
  };
  size_t begin = 0;  // of the stretch that `at` is in
  for (size_t at = 0; at < text.size();) {
    const PieceMatcher::Match special = special_.Longest(text.substr(at));
    if (!special) {
      ++at;
      continue;
    }
    add_text(text.substr(begin, at - begin));
    ids.push_back(special.id);
    at += special.size;
    begin = at;
  }
  add_text(text.substr(begin));
  return ids;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, bool add_bos,
                                                       bool parse_special) const {
  if (!model_) {
    return absl::FailedPreconditionError("text: the checkpoint has no tokenizer.model");
  }
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("text is over ", kMaxTextBytes, " bytes"));
  }
  if (const auto offset = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat("text is not UTF-8 at byte ", *offset));
  }
  std::vector<int32_t> ids = parse_special ? EncodeAroundSpecial(text) : model_->Encode(text);
  const bool has_bos = parse_special && !ids.empty() && ids.front() == bos_id_;
  if (add_bos && bos_id_ >= 0 && !has_bos) ids.insert(ids.begin(), bos_id_);
  return ids;
}

std::string_view Tokenizer::PieceBytes(int32_t id) const {
  return id < 0 || id >= vocab_size() ? std::string_view() : pieces_[static_cast<size_t>(id)];
}

std::string_view Tokenizer::FirstPieceBytes(int32_t id) const {
  std::string_view bytes = PieceBytes(id);
  if (!bytes.empty() && drops_leading_space_[static_cast<size_t>(id)]) bytes.remove_prefix(1);
  return bytes;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  Utf8Assembler assembler;
  bool first = true;
  for (const int32_t id : ids) {
    assembler.Append(first ? FirstPieceBytes(id) : PieceBytes(id), text);
    first = first && PieceBytes(id).empty();
  }
  assembler.Finish(text);
  return text;
}

}  // namespace eta
