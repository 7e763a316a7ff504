// A tokenizer.json taken apart: what is long in it (vocabulary, merges, added tokens) as plain
// tables, all else as a small tree. What the parts mean is judged by those who build them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/json/json_fields.h"
#include "engine/tokenizer/string_table.h"

namespace eta {

inline constexpr size_t kMaxTokenizerJsonBytes = size_t{64} << 20;
inline constexpr size_t kMaxVocabulary = size_t{1} << 20;
inline constexpr size_t kMaxMerges = size_t{1} << 22;
inline constexpr size_t kMaxAddedTokens = 1'000'000;
inline constexpr size_t kMaxAddedBytes = size_t{16} << 20;  // of all added tokens' content together
inline constexpr size_t kMaxTokenBytes = 4096;              // as the file spells it

// Flags as Hugging Face's AddedToken has them.
struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool single_word = false;  // counts only where no word character stands beside it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and the one behind it
  bool normalized = false;   // is looked for in the normalized text
  bool special = false;      // is no text
};

struct TokenizerTables {
  StringTable vocabulary;
  std::vector<int32_t> ids;  // of vocabulary, in [0, kMaxVocabulary)
  StringTable merge_left;    // best first; each as the vocabulary spells it
  StringTable merge_right;
  std::vector<AddedToken> added;
  bool has_vocabulary = false;  // an object of texts and ids; other models have other things there
};

struct TokenizerFile {
  TokenizerTables tables;
  JsonTree rest;  // the file without model.vocab, model.merges and added_tokens
};

// INVALID_ARGUMENT, naming the part: no JSON object, not UTF-8, a lone surrogate, limits exceeded,
// a key twice, fields of added tokens that are missing, unknown or of another type, ids out of
// range, merges that are not two texts. Uses no recursion.
absl::StatusOr<TokenizerFile> ParseTokenizerFile(std::string_view json);

}  // namespace eta
