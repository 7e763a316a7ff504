// The text of models that come with a SentencePiece file (tokenizer.model).
//
// U+2581, the file format's own sign for a space, comes back as a space. The file's control pieces
// are control tokens. Its user-defined pieces are text, taken whole wherever they stand, as
// SentencePiece does; but for those of the ControlSource, which are control tokens too. Where these
// count, they are encoded as part of the text around them, as SentencePiece does.
#pragma once

#include <deque>
#include <set>
#include <string>

#include "engine/tokenizer/piece_matcher.h"
#include "engine/tokenizer/piece_model.h"
#include "engine/tokenizer/text_codec.h"

namespace eta {

class PieceCodec : public TextCodec {
 public:
  // `bos_id` comes before a text; negative: nothing does. Ids from the pieces on up to `vocab_size`
  // read as nothing. REQUIRES: no more pieces than that.
  PieceCodec(PieceTable pieces, int32_t bos_id, const ControlSource& source, int32_t vocab_size);

  const TokenTexts& tokens() const override { return tokens_; }
  size_t max_token_bytes() const override { return model_.max_piece_bytes(); }
  const std::vector<int32_t>& beginning() const override { return beginning_; }
  const std::vector<int32_t>& ending() const override { return ending_; }
  // The longest control piece counts where several begin. Each stretch between them is encoded as a
  // text of its own.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              std::span<const ByteRange> control) const override;

 private:
  // Adds the user-defined pieces that `text`, which a template wrote, spells, but for white space
  // and single characters. `begins`: as a text by itself, so that a space may come before it.
  void FindIn(std::string_view text, bool begins, std::set<int32_t>& ids) const;

  PieceModel model_;
  PieceMatcher special_;
  std::deque<std::string> user_defined_texts_;  // as they stand in a text; what FindIn looks for
  PieceMatcher user_defined_;                   // of these
  std::set<int32_t> control_;                   // of them: in control ranges alone
  TokenTexts tokens_;
  std::vector<int32_t> beginning_;
  std::vector<int32_t> ending_;
};

}  // namespace eta
