// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/piece_codec.h"

#include <string>
#include <utility>

#include "absl/strings/str_replace.h"
#include "engine/tokenizer/text/unicode.h"

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

PieceCodec::PieceCodec(PieceTable pieces, int32_t bos_id, const ControlSource& source,
                       int32_t vocab_size)
    : model_(std::move(pieces)) {
  const PieceTable& table = model_.table();
  const std::set<int32_t> ends(source.ids.begin(), source.ids.end());
  std::vector<PieceMatcher::Entry> special;
  std::vector<PieceMatcher::Entry> user_defined;
  for (const Piece& piece : table.pieces) {
    const auto id = static_cast<int32_t>(tokens_.spelled.size());
    const std::string bytes = BytesOf(piece, table);
    if (piece.type == PieceType::kControl) {
      special.emplace_back(piece.text, id);
      tokens_.special.push_back(id);
    } else if (piece.type == PieceType::kUserDefined && !IsBlankText(bytes)) {
      if (!IsCharacter(bytes)) {
        user_defined_texts_.push_back(bytes);
        user_defined.emplace_back(user_defined_texts_.back(), id);
      }
      if (ends.contains(id)) control_.insert(id);
    }
    tokens_.spelled.Add(piece.text);
    tokens_.bytes.Add(bytes);
    tokens_.first.Add(std::string_view(bytes).substr(DropsLeadingSpace(piece, table) ? 1 : 0));
  }
  for (auto id = static_cast<int32_t>(table.pieces.size()); id < vocab_size; ++id) {
    for (StringTable* texts : {&tokens_.spelled, &tokens_.bytes, &tokens_.first}) texts->Add("");
  }
  special_ = PieceMatcher(std::move(special));
  user_defined_ = PieceMatcher(std::move(user_defined));
  for (const std::string& written : source.written) FindIn(written, /*begins=*/false, control_);
  if (bos_id >= 0) beginning_ = {bos_id};
}

void PieceCodec::FindIn(std::string_view text, bool begins, std::set<int32_t>& ids) const {
  for (size_t at = 0; at < text.size();) {
    if (const PieceMatcher::Match special = special_.Longest(text.substr(at))) {
      at += special.size;
      begins = true;
      continue;
    }
    PieceMatcher::Match match;
    if (std::exchange(begins, false) && model_.table().add_dummy_prefix) {
      match = user_defined_.Longest(" " + std::string(text.substr(at, kMaxPieceBytes)));
      if (match) --match.size;
    }
    if (!match) match = user_defined_.Longest(text.substr(at));
    if (match) ids.insert(match.id);
    at += match ? match.size : 1;
  }
}

absl::StatusOr<std::vector<int32_t>> PieceCodec::Encode(std::string_view text,
                                                        std::span<const ByteRange> control) const {
  std::set<int32_t> withheld = control_;
  const std::vector<ByteRange> ranges = JoinTouching(control);
  std::string marks;
  if (!ranges.empty() && !user_defined_texts_.empty()) {
    marks.assign(text.size(), '\0');
    for (const ByteRange& range : ranges) {
      const std::string_view written = text.substr(range.begin, range.end - range.begin);
      marks.replace(range.begin, written.size(), written.size(), '\1');
      FindIn(written, /*begins=*/range.begin == 0, withheld);
    }
  }
  std::vector<int32_t> ids;
  const auto add_text = [&](size_t begin, size_t end) {
    const std::string_view marked = marks;
    const auto encoded =
        model_.Encode(text.substr(begin, end - begin),
                      marked.empty() ? marked : marked.substr(begin, end - begin), withheld);
    ids.insert(ids.end(), encoded.begin(), encoded.end());
  };
  size_t begin = 0;  // of the stretch that `at` is in
  for (const ByteRange& range : ranges) {
    for (size_t at = range.begin; at < range.end;) {
      const PieceMatcher::Match special = special_.Longest(text.substr(at, range.end - at));
      if (!special) {
        ++at;
        continue;
      }
      add_text(begin, at);
      ids.push_back(special.id);
      at += special.size;
      begin = at;
    }
  }
  add_text(begin, text.size());
  return ids;
}

}  // namespace eta
