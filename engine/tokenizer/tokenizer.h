// Text to token ids and back.
//
// Text is data: control characters and NUL come back unchanged. The file format has one exception:
// U+2581, its own sign for a space, comes back as a space. Words such as "<s>" in a text are text
// and never become control ids, unless the caller asks for that: so whoever writes a part of a text
// cannot forge its structure. Special tokens are the file's control pieces. Its user-defined pieces
// are text, taken whole wherever they stand, as SentencePiece does.
//
// A checkpoint without a SentencePiece model is served by token ids alone: its tokenizer knows the
// special ids and no text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/tokenizer/piece_matcher.h"
#include "engine/tokenizer/piece_model.h"

namespace eta {

// Immutable after Load; thread-safe.
class Tokenizer {
 public:
  // From the contents of a SentencePiece model file. Errors of ParsePieceTable; FAILED_PRECONDITION
  // if the number of pieces is not the config's vocab_size. Begin and end of text are the config's;
  // where it names none, the file's. Absent: a tokenizer of ids alone.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(std::optional<std::string_view> serialized,
                                                         const ModelConfig& config);

  // False: Encode refuses, ids have no bytes.
  bool knows_text() const { return model_.has_value(); }

  // Bytes of text that one token stands for at most; 0: any number.
  size_t max_token_bytes() const { return model_ ? model_->max_piece_bytes() : 0; }

  int32_t vocab_size() const { return static_cast<int32_t>(pieces_.size()); }
  int32_t bos_id() const { return bos_id_; }  // -1: none
  const std::vector<int32_t>& eos_ids() const { return eos_ids_; }

  // INVALID_ARGUMENT for text that is not UTF-8 (with the offset of the first bad byte) or over
  // kMaxTextBytes; FAILED_PRECONDITION without a SentencePiece model. `add_bos` puts bos_id()
  // first, if there is one. `parse_special`: control pieces that the text spells become their ids,
  // the longest where several begin; each stretch between them is encoded as a text of its own. A
  // text that begins with bos_id() then gets no second one.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_bos,
                                              bool parse_special = false) const;

  // What `id` adds to a text: bytes, not always whole characters; none for control pieces and for
  // ids outside the vocabulary.
  std::string_view PieceBytes(int32_t id) const;

  // The same for the first id of a text whose PieceBytes are not empty: the space that Encode puts
  // before a text (models with a dummy prefix) is taken off again.
  std::string_view FirstPieceBytes(int32_t id) const;

  // The text of `ids`; bytes that make no character become U+FFFD, one each. Control pieces between
  // the bytes of a character do not split it.
  std::string Decode(std::span<const int32_t> ids) const;

 private:
  explicit Tokenizer(PieceTable pieces);
  explicit Tokenizer(int32_t vocab_size);
  std::vector<int32_t> EncodeAroundSpecial(std::string_view text) const;

  std::optional<PieceModel> model_;
  PieceMatcher special_;
  std::vector<std::string> pieces_;        // PieceBytes by id
  std::vector<bool> drops_leading_space_;  // by id: FirstPieceBytes is one byte shorter
  int32_t bos_id_ = -1;
  std::vector<int32_t> eos_ids_;
};

}  // namespace eta
