// lint: untrusted-input, fuzz-covered
// A vocabulary with scores as a SentencePiece model file (ModelProto). Its field numbers are those
// of sentencepiece_model.proto.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/checkpoint/gguf/gguf_tokenizer.h"

namespace eta {
namespace {

constexpr char kCharacterMap[] = "tokenizer.ggml.precompiled_charsmap";

// The encoding of Protocol Buffers: numbers, float32 and runs of bytes.
void PutVarint(uint64_t value, std::string& out) {
  for (; value > 0x7F; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
void PutNumber(uint32_t field, uint64_t value, std::string& out) {
  PutVarint(field << 3, out);
  PutVarint(value, out);
}
void PutFloat(uint32_t field, float value, std::string& out) {
  PutVarint(field << 3 | 5, out);
  const auto bits = std::bit_cast<uint32_t>(value);
  // cannot wrap: i counts the bytes of a number
  for (int i = 0; i < 4; ++i) out += static_cast<char>(bits >> (8 * i));
}
void PutBytes(uint32_t field, std::string_view bytes, std::string& out) {
  PutVarint(field << 3 | 2, out);
  PutVarint(bytes.size(), out);
  out.append(bytes);
}

std::string MakePiece(std::string_view token, float score, GgufTokenType type) {
  // Files have user-defined tokens with spaces as such; an unused token is never made from text.
  const bool whole = type == GgufTokenType::kUserDefined;
  if (type == GgufTokenType::kUnused) type = GgufTokenType::kControl;
  std::string piece;
  PutBytes(
      1,
      whole ? absl::StrReplaceAll(std::string(token), {{" ", "\xE2\x96\x81"}}) : std::string(token),
      piece);
  PutFloat(2, score, piece);
  PutNumber(3, static_cast<uint64_t>(type), piece);
  return piece;
}

}  // namespace

absl::StatusOr<std::string> MakeSentencePieceModel(GgufMetadata& metadata,
                                                   GgufVocabulary& vocabulary) {
  const std::vector<float> scores = metadata.Reals(gguf_key::kScores);
  if (scores.size() != vocabulary.tokens.size()) {
    metadata.Fail(gguf_key::kScores, "must have as many entries as tokenizer.ggml.tokens");
  }
  for (size_t id = 0; id < scores.size(); ++id) {
    if (!std::isfinite(scores[id]))
      metadata.Fail(gguf_key::kScores, absl::StrCat("entry ", id, " is not finite"));
  }
  if (metadata.Has(kCharacterMap)) metadata.FailUnsupported(kCharacterMap, "is not supported");
  const bool prefix = metadata.OptionalBool(gguf_key::kAddSpacePrefix).value_or(true);
  const bool remove_spaces =
      metadata.OptionalBool("tokenizer.ggml.remove_extra_whitespaces").value_or(false);
  if (remove_spaces) {
    metadata.FailUnsupported("tokenizer.ggml.remove_extra_whitespaces", "true is not supported");
  }
  if (!metadata.status().ok()) return metadata.status();
  vocabulary.add_bos = vocabulary.add_bos.value_or(true);

  // Where tokenizer.json lists it among the special ones, the file calls it a control token.
  const bool has_unknown =
      std::ranges::find(vocabulary.types, GgufTokenType::kUnknown) != vocabulary.types.end();
  if (vocabulary.unk_id && !has_unknown) {
    vocabulary.types[static_cast<size_t>(*vocabulary.unk_id)] = GgufTokenType::kUnknown;
  }

  std::string model;
  bool has_bytes = false;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    PutBytes(1, MakePiece(vocabulary.tokens[id], scores[id], vocabulary.types[id]), model);
    has_bytes |= vocabulary.types[id] == GgufTokenType::kByte;
  }
  constexpr uint64_t kBytePairEncoding = 2;
  std::string trainer;
  PutNumber(3, kBytePairEncoding, trainer);
  PutNumber(35, has_bytes ? 1 : 0, trainer);
  if (vocabulary.unk_id) PutBytes(45, vocabulary.TextOf(vocabulary.unk_id), trainer);
  // Without a piece that begins a text, none is put before it. Not said: the format's default.
  if (!*vocabulary.add_bos || vocabulary.bos_id) {
    PutBytes(46, *vocabulary.add_bos ? vocabulary.TextOf(vocabulary.bos_id) : "", trainer);
  }
  if (vocabulary.eos_id) PutBytes(47, vocabulary.TextOf(vocabulary.eos_id), trainer);
  PutBytes(2, trainer, model);
  std::string normalizer;
  PutBytes(1, "identity", normalizer);
  PutNumber(3, prefix ? 1 : 0, normalizer);
  PutNumber(4, 0, normalizer);
  PutNumber(5, 1, normalizer);
  PutBytes(3, normalizer, model);
  return model;
}

}  // namespace eta
