// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/gguf/gguf_vocabulary.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "absl/strings/str_cat.h"

namespace eta {
namespace {

constexpr char kEnds[] = "tokenizer.ggml.eos_token_ids";

// Of Harmony, where kMessageEnd ends a part of an answer.
constexpr std::string_view kReturn = "<|return|>";
constexpr std::string_view kCall = "<|call|>";
constexpr std::string_view kMessageEnd = "<|end|>";
// Of LLaMA 3, ChatML, Phi, Gemma, GPT-2, Granite, Harmony and DeepSeek.
constexpr std::string_view kEndTokens[] = {
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    kMessageEnd,
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    kReturn,
    kCall,
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
};

void ReadTokens(GgufMetadata& metadata, GgufVocabulary& vocabulary) {
  vocabulary.tokens = metadata.Texts(gguf_key::kTokens);
  const size_t count = vocabulary.tokens.size();
  if (count < 1 || count > static_cast<size_t>(kGgufMaxTokens)) {
    return metadata.Fail(gguf_key::kTokens, "must be a list of 1 to 2^20 texts");
  }
  std::unordered_set<std::string_view> seen;
  for (size_t id = 0; id < count; ++id) {
    const std::string_view token = vocabulary.tokens[id];
    const auto fail = [&](const std::string& sentence) {
      metadata.Fail(gguf_key::kTokens, absl::StrCat("entry ", id, " ", sentence));
    };
    if (token.empty()) return fail("is empty");
    if (token.size() > kGgufMaxTokenBytes) return fail("is over 1024 bytes");
    if (!seen.insert(token).second) return fail("is there twice");
  }
}

void ReadTypes(GgufMetadata& metadata, GgufVocabulary& vocabulary) {
  vocabulary.types.assign(vocabulary.tokens.size(), GgufTokenType::kNormal);
  if (!metadata.Has(gguf_key::kTokenTypes)) return;
  const std::vector<int64_t> types = metadata.Integers(gguf_key::kTokenTypes);
  if (types.size() != vocabulary.tokens.size()) {
    return metadata.Fail(gguf_key::kTokenTypes,
                         "must have as many entries as tokenizer.ggml.tokens");
  }
  for (size_t id = 0; id < types.size(); ++id) {
    if (types[id] < 1 || types[id] > 6) {
      return metadata.Fail(gguf_key::kTokenTypes, absl::StrCat("entry ", id, " must be in [1, 6]"));
    }
    vocabulary.types[id] = static_cast<GgufTokenType>(types[id]);
  }
}

// What ends no answer although other models end theirs with it: a token of Harmony's.
std::optional<int32_t> NoEnd(const GgufVocabulary& vocabulary) {
  const auto id_of = [&](std::string_view token) -> std::optional<int32_t> {
    const auto at = std::ranges::find(vocabulary.tokens, token);
    if (at == vocabulary.tokens.end()) return std::nullopt;
    return static_cast<int32_t>(at - vocabulary.tokens.begin());
  };
  return id_of(kReturn) && id_of(kCall) ? id_of(kMessageEnd) : std::nullopt;
}

void ReadEnds(GgufMetadata& metadata, GgufVocabulary& vocabulary) {
  const auto last = static_cast<int64_t>(vocabulary.tokens.size()) - 1;
  std::set<int32_t> ends;
  if (vocabulary.eos_id) ends.insert(*vocabulary.eos_id);
  for (const char* key : {gguf_key::kEotId, gguf_key::kEomId}) {
    const auto id = metadata.OptionalInteger(key, 0, last);
    if (id) ends.insert(static_cast<int32_t>(*id));
  }
  for (const int64_t id : metadata.Integers(kEnds)) {
    if (id < 0 || id > last) {
      return metadata.Fail(kEnds, absl::StrCat("must be whole numbers in [0, ", last, "]"));
    }
    ends.insert(static_cast<int32_t>(id));
  }
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] == GgufTokenType::kUnused || !EndsAnswers(vocabulary.tokens[id])) {
      continue;
    }
    // Some files call it text; then whoever writes a message could end it.
    vocabulary.types[id] = GgufTokenType::kControl;
    ends.insert(static_cast<int32_t>(id));
  }
  if (const auto id = NoEnd(vocabulary); id && id != vocabulary.eos_id) ends.erase(*id);
  vocabulary.end_ids.assign(ends.begin(), ends.end());
}

}  // namespace

bool EndsAnswers(std::string_view token) {
  return std::find(std::begin(kEndTokens), std::end(kEndTokens), token) != std::end(kEndTokens);
}

absl::StatusOr<GgufVocabulary> ReadGgufVocabulary(GgufMetadata& metadata) {
  GgufVocabulary vocabulary;
  ReadTokens(metadata, vocabulary);
  if (!metadata.status().ok()) return metadata.status();
  ReadTypes(metadata, vocabulary);
  const auto last = static_cast<int64_t>(vocabulary.tokens.size()) - 1;
  const auto read_id = [&](std::string_view key) -> std::optional<int32_t> {
    const auto id = metadata.OptionalInteger(key, 0, last);
    return id ? std::optional(static_cast<int32_t>(*id)) : std::nullopt;
  };
  vocabulary.bos_id = read_id(gguf_key::kBosId);
  vocabulary.eos_id = read_id(gguf_key::kEosId);
  vocabulary.unk_id = read_id(gguf_key::kUnknownId);
  vocabulary.pad_id = read_id(gguf_key::kPaddingId);
  vocabulary.add_bos = metadata.OptionalBool(gguf_key::kAddBos);
  // An answer continues its prompt, so an end of text never stands between them.
  metadata.OptionalBool("tokenizer.ggml.add_eos_token");
  if (metadata.OptionalBool("tokenizer.ggml.add_sep_token").value_or(false)) {
    metadata.FailUnsupported("tokenizer.ggml.add_sep_token", "true is not supported");
  }
  ReadEnds(metadata, vocabulary);
  if (!metadata.status().ok()) return metadata.status();
  return vocabulary;
}

}  // namespace eta
