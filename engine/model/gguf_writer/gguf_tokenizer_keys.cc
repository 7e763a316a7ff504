#include "engine/model/gguf_writer/gguf_tokenizer_keys.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/gguf/gguf_vocabulary.h"
#include "engine/checkpoint/piece_table.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr size_t kMaxConfigDepth = 16;
constexpr float kPaddingScore = -1e4f;  // as the usual conversion has it

// The token of padding, which tokenizer_config.json spells.
absl::Status SetPadding(const std::string& tokenizer_config, const std::vector<std::string>& tokens,
                        GgufHead& head) {
  ASSIGN_OR_RETURN(const auto tree, ParseStrictJson("tokenizer_config.json", tokenizer_config,
                                                    kMaxConfigBytes, kMaxConfigDepth));
  const auto value = tree.root().find("pad_token");
  const Json* text = value == tree.root().end() ? nullptr : &*value;
  if (text != nullptr && text->is_object()) {
    const auto content = text->find("content");
    text = content == text->end() ? nullptr : &*content;
  }
  if (text == nullptr || !text->is_string()) return absl::OkStatus();
  const auto found = std::find(tokens.begin(), tokens.end(), text->get<std::string>());
  if (found == tokens.end()) return absl::OkStatus();
  head.Set(gguf_key::kPaddingId, static_cast<uint32_t>(found - tokens.begin()));
  return absl::OkStatus();
}

// Files name the end of a text, of a turn and of a message; others count by how they are spelled.
absl::Status SetEnds(const std::vector<int32_t>& ends, const std::vector<std::string>& tokens,
                     GgufHead& head) {
  constexpr const char* kKeys[] = {gguf_key::kEosId, gguf_key::kEotId, gguf_key::kEomId};
  size_t set = 0;
  for (const int32_t id : ends) {
    if (id < 0 || static_cast<size_t>(id) >= tokens.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("eos_token_id ", id, " is outside of the vocabulary"));
    }
    if (set > 0 && EndsAnswers(tokens[static_cast<size_t>(id)])) continue;
    if (set == std::size(kKeys)) {
      return absl::UnimplementedError(
          absl::StrCat("eos_token_id ", id, " has no key in a GGUF file, which has three"));
    }
    head.Set(kKeys[set++], static_cast<uint32_t>(id));
  }
  return absl::OkStatus();
}

// Of a tokenizer.model: the keys that are its own.
absl::Status SetPieceKeys(const std::string& tokenizer_model, size_t vocab_size, GgufTokens& tokens,
                          GgufHead& head) {
  ASSIGN_OR_RETURN(const auto table, ParsePieceTable(tokenizer_model));
  std::vector<float> scores;
  for (const Piece& piece : table.pieces) {
    tokens.texts.push_back(piece.text);
    tokens.types.push_back(static_cast<int32_t>(piece.type));
    scores.push_back(piece.score);
  }
  if (table.bos_id >= 0) tokens.bos = table.bos_id;
  scores.resize(std::max(scores.size(), vocab_size), kPaddingScore);
  head.Set(gguf_key::kTokenizer, gguf_key::kPieces);
  head.Set(gguf_key::kScores, scores);
  head.Set(gguf_key::kAddBos, table.bos_id >= 0);
  head.Set(gguf_key::kAddSpacePrefix, table.add_dummy_prefix);
  if (table.unk_id >= 0) {
    head.Set(gguf_key::kUnknownId, static_cast<uint32_t>(table.unk_id));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SetTokenizerKeys(const TokenizerFiles& files, int32_t vocab_size,
                              const GgufSpecialIds& ids, GgufHead& head) {
  const auto size = static_cast<size_t>(vocab_size);
  GgufTokens tokens;
  if (files.tokenizer_json) {
    RETURN_IF_ERROR(SetByteLevelKeys(*files.tokenizer_json, tokens, head));
  } else if (files.sentencepiece_model) {
    RETURN_IF_ERROR(SetPieceKeys(*files.sentencepiece_model, size, tokens, head));
  } else {
    return absl::FailedPreconditionError("the model has no tokenizer, which a GGUF file needs");
  }
  if (tokens.texts.size() > size) {
    return absl::FailedPreconditionError("the tokenizer has more tokens than vocab_size");
  }
  tokens.texts.resize(size);
  tokens.types.resize(size);
  for (size_t id = 0; id < size; ++id) {
    if (!tokens.texts[id].empty()) continue;
    tokens.texts[id] = absl::StrCat("[PAD", id, "]");
    tokens.types[id] = static_cast<int32_t>(GgufTokenType::kUnused);
  }
  head.Set(gguf_key::kTokens, tokens.texts);
  head.Set(gguf_key::kTokenTypes, tokens.types);
  const std::optional<int32_t> bos = tokens.bos ? tokens.bos : ids.bos;
  if (bos) head.Set(gguf_key::kBosId, static_cast<uint32_t>(*bos));
  RETURN_IF_ERROR(SetEnds(ids.ends, tokens.texts, head));
  if (files.tokenizer_config_json) {
    RETURN_IF_ERROR(SetPadding(*files.tokenizer_config_json, tokens.texts, head));
  }
  if (files.chat_template) head.Set(gguf_key::kChatTemplate, *files.chat_template);
  return absl::OkStatus();
}

}  // namespace eta
