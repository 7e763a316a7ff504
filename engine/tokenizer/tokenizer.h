// Text to token ids and back.
//
// Text is data: control characters and NUL come back unchanged. Words such as "<s>" in a text are
// text and never become control ids, unless the caller says where they may: so whoever writes a
// part of a text cannot forge its structure.
//
// A model's tokenizer is its tokenizer.json (json/json_codec.h) or, where it has none, its
// SentencePiece file tokenizer.model (piece_codec.h). A checkpoint with neither is served by token
// ids alone: its tokenizer knows the special ids and no text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/byte_range.h"
#include "engine/checkpoint/tokenizer_files.h"
#include "engine/model/model_config.h"
#include "engine/tokenizer/text_codec.h"

namespace eta {

// Immutable after Load; thread-safe.
class Tokenizer {
 public:
  // Errors of ParsePieceTable and LoadJsonCodec. FAILED_PRECONDITION where the ids do not fit the
  // config's vocab_size; a file may have fewer tokens than that.
  // End of text is the config's; where it names none, the file's. What begins a text: of
  // tokenizer.json what its post-processor says; of tokenizer.model the config's bos_token_id, else
  // the file's; without a file the config's.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const TokenizerFiles& files,
                                                         const ModelConfig& config);

  // False: Encode refuses, ids have no bytes.
  bool knows_text() const { return codec_ != nullptr; }

  // Bytes of text that one token stands for at most; 0: any number.
  size_t max_token_bytes() const { return codec_ ? codec_->max_token_bytes() : 0; }

  int32_t vocab_size() const { return vocab_size_; }
  // What Encode puts before a text: the one source of it for prompts, samples and windows alike.
  const std::vector<int32_t>& beginning() const { return beginning_; }
  const std::vector<int32_t>& eos_ids() const { return eos_ids_; }

  // Ids of the control tokens, ascending: the special tokens of the file; of a tokenizer that knows
  // ids alone, what begins and ends a text.
  const std::vector<int32_t>& special_ids() const { return special_ids_; }

  // What chat templates call bos_token and eos_token, as spelled; empty: there is none.
  std::string_view bos_text() const { return bos_text_; }
  std::string_view eos_text() const { return eos_text_; }

  // INVALID_ARGUMENT for text that is not UTF-8 (with the offset of the first bad byte) or over
  // kMaxTextBytes, for ranges that are not sorted, disjoint and in the text, for text on which a
  // pattern of the file exceeds its limits, and for a byte or character that no token stands for
  // (with its offset; Hugging Face's tokenizers leave it out); FAILED_PRECONDITION without a
  // tokenizer. `add_bos`
  // puts first (and last) what the model wants there. Control tokens that the text spells become
  // their ids where they lie in `control` whole, the longest where several begin. A text that
  // begins with such a beginning of text then gets no second one.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_bos,
                                              std::span<const ByteRange> control) const;
  // `parse_special`: the whole text may spell control tokens; else none of it.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_bos,
                                              bool parse_special = false) const;

  bool IsSpecial(int32_t id) const;  // one of special_ids

  // How the vocabulary spells a token, such as "<|im_end|>"; empty for ids that it does not have.
  std::string_view TokenText(int32_t id) const;

  // What `id` adds to a text: bytes, not always whole characters; none for special tokens and for
  // ids outside the vocabulary.
  std::string_view PieceBytes(int32_t id) const;

  // The same for the first id of a text whose PieceBytes are not empty: the space that Encode puts
  // before a text (models that do so) is taken off again.
  std::string_view FirstPieceBytes(int32_t id) const;

  // What `id` adds to a text that shows special tokens: TokenText of those, PieceBytes of others.
  std::string_view ShownBytes(int32_t id) const {
    return IsSpecial(id) ? TokenText(id) : PieceBytes(id);
  }

  // The text of `ids`; bytes that make no character become U+FFFD, one each. Special tokens between
  // the bytes of a character do not split it, unless they are shown.
  std::string Decode(std::span<const int32_t> ids, bool show_special = false) const;

 private:
  Tokenizer(std::unique_ptr<const TextCodec> codec, int32_t vocab_size);
  void SetEnds(const ModelConfig& config, int32_t file_eos_id);

  std::unique_ptr<const TextCodec> codec_;
  int32_t vocab_size_;
  std::vector<int32_t> beginning_;
  std::vector<int32_t> eos_ids_;
  std::vector<int32_t> special_ids_;
  std::string bos_text_;
  std::string eos_text_;
};

}  // namespace eta
