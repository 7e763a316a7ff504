// A GGUF file's tokenizer as the files that Hugging Face's checkpoints have.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/gguf/gguf_metadata.h"
#include "engine/checkpoint/gguf/gguf_vocabulary.h"
#include "engine/checkpoint/tokenizer_files.h"

namespace eta {

struct GgufTokenizer {
  TokenizerFiles files;
  std::optional<std::string> generation_config_json;
  int64_t vocab_size = 0;  // 0: the file has no tokenizer
  // For config.json. A tokenizer.model begins every text with it, so there it is absent where the
  // file wants none; templates have its spelling from tokenizer_config.json.
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
};

// tokenizer.ggml.model "gpt2" becomes a tokenizer.json, "llama" a tokenizer.model. Without one, or
// "none", all files but the template are absent. UNIMPLEMENTED, naming it, for other models, names
// of pre-tokenizers that are not known, normalisation tables. Errors of ReadGgufVocabulary.
absl::StatusOr<GgufTokenizer> ReadGgufTokenizer(GgufMetadata& metadata);

// The two kinds, for ReadGgufTokenizer. They may turn `vocabulary.add_bos` to what holds where the
// file does not say.
absl::StatusOr<std::string> MakeTokenizerJson(GgufMetadata& metadata, GgufVocabulary& vocabulary);
absl::StatusOr<std::string> MakeSentencePieceModel(GgufMetadata& metadata,
                                                   GgufVocabulary& vocabulary);

}  // namespace eta
