// The vocabulary in a GGUF file's metadata, whatever the kind of tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/gguf/gguf_metadata.h"

namespace eta {

inline constexpr int64_t kGgufMaxTokens = int64_t{1} << 20;
inline constexpr size_t kGgufMaxTokenBytes = 1024;

// The numbers are those of SentencePiece's pieces.
enum class GgufTokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // structure: never made from text
  kUserDefined = 4,  // text, always taken whole
  kUnused = 5,
  kByte = 6,
};

// Whether a token of this spelling ends an answer, in whatever file it is.
bool EndsAnswers(std::string_view token);

struct GgufVocabulary {
  std::vector<std::string_view> tokens;  // views into the header's bytes
  std::vector<GgufTokenType> types;      // one per token
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  std::optional<int32_t> unk_id;
  std::optional<int32_t> pad_id;
  std::optional<bool> add_bos;
  // Tokens at which an answer ends, sorted: end of text, of a turn, of a message; and those that
  // are spelled as one of the usual ones, which some files do not name.
  std::vector<int32_t> end_ids;

  std::string_view TextOf(std::optional<int32_t> id) const { return id ? tokens[*id] : ""; }
};

// INVALID_ARGUMENT for lists that do not fit each other, over 2^20 tokens, tokens that are empty,
// over 1024 bytes, not UTF-8 or there twice, ids outside. UNIMPLEMENTED for a separator put behind
// every text. An end put there (add_eos_token) is left out: answers continue their prompts.
absl::StatusOr<GgufVocabulary> ReadGgufVocabulary(GgufMetadata& metadata);

}  // namespace eta
