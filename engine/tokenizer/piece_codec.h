// The text of models that come with a SentencePiece file (tokenizer.model).
//
// U+2581, the file format's own sign for a space, comes back as a space. The file's control pieces
// are control tokens. Its user-defined pieces are text, taken whole wherever they stand, as
// SentencePiece does.
#pragma once

#include "engine/tokenizer/piece_matcher.h"
#include "engine/tokenizer/piece_model.h"
#include "engine/tokenizer/text_codec.h"

namespace eta {

class PieceCodec : public TextCodec {
 public:
  // `bos_id` comes before a text; negative: nothing does.
  PieceCodec(PieceTable pieces, int32_t bos_id);

  const TokenTexts& tokens() const override { return tokens_; }
  size_t max_token_bytes() const override { return model_.max_piece_bytes(); }
  const std::vector<int32_t>& beginning() const override { return beginning_; }
  const std::vector<int32_t>& ending() const override { return ending_; }
  // The longest control piece counts where several begin. Each stretch between them is encoded as a
  // text of its own.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              std::span<const ByteRange> control) const override;

 private:
  PieceModel model_;
  PieceMatcher special_;
  TokenTexts tokens_;
  std::vector<int32_t> beginning_;
  std::vector<int32_t> ending_;
};

}  // namespace eta
