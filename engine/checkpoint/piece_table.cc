// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/piece_table.h"

#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <unordered_set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/utf8.h"

namespace eta {
namespace {

absl::Status Damaged(const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat("tokenizer model: ", sentence));
}

absl::Status Unsupported(const std::string& what) {
  return absl::UnimplementedError(absl::StrCat("tokenizer model: ", what, " is not supported"));
}

// One field of a message: a number (varint or fixed) or a run of bytes.
struct Field {
  uint32_t number = 0;
  uint64_t value = 0;
  std::string_view bytes;
};

// Walks the fields of one message; stops for good at the first malformed one.
class FieldWalk {
 public:
  explicit FieldWalk(std::string_view message) : rest_(message) {}

  bool ok() const { return ok_; }

  std::optional<Field> Next() {
    if (!ok_ || rest_.empty()) return std::nullopt;
    const uint64_t tag = Varint();
    Field field{.number = static_cast<uint32_t>(tag >> 3), .value = 0, .bytes = {}};
    if (tag > UINT32_MAX || field.number == 0) ok_ = false;
    switch (tag & 7) {
      case 0:
        field.value = Varint();
        break;
      case 1:
        field.value = Fixed(8);
        break;
      case 2:
        field.bytes = Bytes(Varint());
        break;
      case 5:
        field.value = Fixed(4);
        break;
      default:  // groups do not occur in this format
        ok_ = false;
    }
    return ok_ ? std::optional(field) : std::nullopt;
  }

 private:
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      if (shift == 63 && byte > 1) break;
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }

  uint64_t Fixed(size_t size) {
    uint64_t value = 0;
    const std::string_view bytes = Bytes(size);
    for (size_t i = 0; i < bytes.size(); ++i) {
      // cannot wrap: i counts the bytes of a number
      value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    }
    return value;
  }

  std::string_view Bytes(uint64_t size) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }

  std::string_view rest_;
  bool ok_ = true;
};

absl::Status Malformed() {
  return Damaged("is not a well-formed SentencePiece file");
}

// What decides how text is cut but does not stand in the table.
struct Settings {
  uint64_t model_type = 1;  // unigram, the format's default
  bool suffix_spaces = false;
  bool remove_extra_spaces = true;
  bool escape_spaces = true;
  bool normalisation_table = false;
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";
};

// Field numbers below are those of sentencepiece_model.proto.

absl::Status ReadPiece(std::string_view message, PieceTable& table) {
  if (table.pieces.size() == kMaxPieces) return Damaged("has over 2^20 pieces");
  Piece piece;
  uint64_t type = 1;
  FieldWalk walk(message);
  while (const auto field = walk.Next()) {
    if (field->number == 1) piece.text = std::string(field->bytes.substr(0, kMaxPieceBytes + 1));
    if (field->number == 2) piece.score = std::bit_cast<float>(static_cast<uint32_t>(field->value));
    if (field->number == 3) type = field->value;
  }
  if (!walk.ok()) return Malformed();
  const auto invalid = [&table](const std::string& sentence) {
    return Damaged(absl::StrCat("piece ", table.pieces.size(), " ", sentence));
  };
  if (piece.text.empty()) return invalid("is empty");
  if (piece.text.size() > kMaxPieceBytes) return invalid("is over 1024 bytes");
  if (FirstInvalidUtf8(piece.text)) return invalid("is not UTF-8");
  if (!std::isfinite(piece.score)) return invalid("has a score that is not finite");
  if (type == 5) return Unsupported("an unused piece");
  if (type < 1 || type > 6) return invalid("has an unknown type");
  piece.type = static_cast<PieceType>(type);
  table.pieces.push_back(std::move(piece));
  return absl::OkStatus();
}

absl::Status ReadTrainerSpec(std::string_view message, PieceTable& table, Settings& settings) {
  FieldWalk walk(message);
  while (const auto field = walk.Next()) {
    if (field->number == 3) settings.model_type = field->value;
    if (field->number == 24) settings.suffix_spaces = field->value != 0;
    if (field->number == 35) table.byte_fallback = field->value != 0;
    if (field->number == 44) table.unknown_text = std::string(field->bytes);
    if (field->number == 46) settings.bos_piece = std::string(field->bytes);
    if (field->number == 47) settings.eos_piece = std::string(field->bytes);
  }
  if (!walk.ok()) return Malformed();
  if (table.unknown_text.size() > kMaxPieceBytes || FirstInvalidUtf8(table.unknown_text)) {
    return Damaged("the unknown piece reads as text that is too long or not UTF-8");
  }
  return absl::OkStatus();
}

absl::Status ReadNormalizerSpec(std::string_view message, PieceTable& table, Settings& settings) {
  FieldWalk walk(message);
  while (const auto field = walk.Next()) {
    if (field->number == 2) settings.normalisation_table |= !field->bytes.empty();
    if (field->number == 3) table.add_dummy_prefix = field->value != 0;
    if (field->number == 4) settings.remove_extra_spaces = field->value != 0;
    if (field->number == 5) settings.escape_spaces = field->value != 0;
  }
  return walk.ok() ? absl::OkStatus() : Malformed();
}

absl::Status ReadDenormalizerSpec(std::string_view message, Settings& settings) {
  FieldWalk walk(message);
  while (const auto field = walk.Next()) {
    if (field->number == 2) settings.normalisation_table |= !field->bytes.empty();
  }
  return walk.ok() ? absl::OkStatus() : Malformed();
}

absl::Status CheckSettings(const Settings& settings) {
  if (settings.model_type != 2) return Unsupported("a model type other than BPE");
  if (settings.normalisation_table) return Unsupported("a normalisation table");
  if (settings.remove_extra_spaces) return Unsupported("removal of extra spaces");
  if (settings.suffix_spaces) return Unsupported("a space as suffix of a word");
  if (!settings.escape_spaces) return Unsupported("an unescaped space");
  return absl::OkStatus();
}

absl::Status CheckPieces(const Settings& settings, PieceTable& table) {
  std::unordered_set<std::string_view> seen;
  std::array<bool, 256> bytes{};
  for (size_t id = 0; id < table.pieces.size(); ++id) {
    const Piece& piece = table.pieces[id];
    if (!seen.insert(piece.text).second)
      return Damaged(absl::StrCat("piece ", id, " is there twice"));
    if (piece.type == PieceType::kUnknown) {
      if (table.unk_id >= 0) return Damaged("has two unknown pieces");
      table.unk_id = static_cast<int32_t>(id);
    } else if (piece.type == PieceType::kByte) {
      const int byte = ByteOf(piece.text);
      if (byte < 0)
        return Damaged(absl::StrCat("piece ", id, " is a byte piece with another name"));
      bytes[static_cast<size_t>(byte)] = true;
    } else if (piece.type == PieceType::kControl) {
      if (piece.text == settings.bos_piece) table.bos_id = static_cast<int32_t>(id);
      if (piece.text == settings.eos_piece) table.eos_id = static_cast<int32_t>(id);
    }
  }
  if (table.unk_id < 0) return Damaged("has no unknown piece");
  for (const bool present : bytes) {
    if (present != table.byte_fallback)
      return Damaged("has byte pieces that do not fit byte_fallback");
  }
  return absl::OkStatus();
}

}  // namespace

int ByteOf(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const size_t high = kDigits.find(text[3]);
  const size_t low = kDigits.find(text[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return -1;
  // cannot wrap: two hexadecimal digits
  return static_cast<int>(high * 16 + low);
}

absl::StatusOr<PieceTable> ParsePieceTable(std::string_view serialized) {
  PieceTable table;
  table.unknown_text = " \xE2\x81\x87 ";  // the format's default
  Settings settings;
  absl::Status status;
  FieldWalk walk(serialized);
  while (const auto field = walk.Next()) {
    switch (field->number) {
      case 1:
        status = ReadPiece(field->bytes, table);
        break;
      case 2:
        status = ReadTrainerSpec(field->bytes, table, settings);
        break;
      case 3:
        status = ReadNormalizerSpec(field->bytes, table, settings);
        break;
      case 5:
        status = ReadDenormalizerSpec(field->bytes, settings);
        break;
      default:
        break;
    }
    if (!status.ok()) return status;
  }
  if (!walk.ok() || table.pieces.empty()) return Malformed();
  status = CheckSettings(settings);
  if (status.ok()) status = CheckPieces(settings, table);
  if (!status.ok()) return status;
  return table;
}

}  // namespace eta
