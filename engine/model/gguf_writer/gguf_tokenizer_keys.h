// A tokenizer as GGUF's metadata say it: what ReadGgufTokenizer
// (engine/checkpoint/gguf/gguf_tokenizer.h) reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/checkpoint/tokenizer_files.h"
#include "engine/model/gguf_writer/gguf_head.h"

namespace eta {

struct GgufSpecialIds {
  std::optional<int32_t> bos;
  std::vector<int32_t> ends;  // at which an answer ends; the first is the end of a text
};

// Sets tokenizer.* in `head`, with `vocab_size` tokens: ids that the tokenizer does not have are
// unused ones. FAILED_PRECONDITION without a tokenizer; UNIMPLEMENTED, naming it, for what the
// format has no key for: parts of a tokenizer.json but byte-level BPE with cuts that have a name,
// added tokens that take spaces or whole words, over two ends that have no name of their own.
// Errors of ParsePieceTable.
absl::Status SetTokenizerKeys(const TokenizerFiles& files, int32_t vocab_size,
                              const GgufSpecialIds& ids, GgufHead& head);

struct GgufTokens {
  std::vector<std::string> texts;  // by id; empty: there is no token with that id
  std::vector<int32_t> types;      // GgufTokenType's numbers
  std::optional<int32_t> bos;      // what the tokenizer begins every text with
};

// For SetTokenizerKeys: the keys of a tokenizer.json alone.
absl::Status SetByteLevelKeys(const std::string& tokenizer_json, GgufTokens& tokens,
                              GgufHead& head);

}  // namespace eta
