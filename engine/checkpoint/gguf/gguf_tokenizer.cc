// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/gguf/gguf_tokenizer.h"

#include <utility>

#include "engine/base/files/input_file.h"
#include "engine/base/json/json_writer.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

std::string MakeTokenizerConfig(const GgufVocabulary& vocabulary,
                                std::string_view tokenizer_class) {
  JsonWriter json;
  json.BeginObject();
  json.Key("add_bos_token").Value(vocabulary.add_bos.value_or(false));
  json.Key("add_eos_token").Value(false);
  const auto token = [&](const char* key, std::optional<int32_t> id) {
    if (id) json.Key(key).Value(vocabulary.TextOf(id));
  };
  token("bos_token", vocabulary.bos_id);
  token("eos_token", vocabulary.eos_id);
  token("pad_token", vocabulary.pad_id);
  token("unk_token", vocabulary.unk_id);
  json.Key("clean_up_tokenization_spaces").Value(false);
  json.Key("tokenizer_class").Value(tokenizer_class);
  json.End();
  return json.Release();
}

std::optional<std::string> MakeGenerationConfig(const GgufVocabulary& vocabulary) {
  if (vocabulary.end_ids.empty()) return std::nullopt;
  JsonWriter json;
  json.BeginObject();
  if (vocabulary.bos_id) json.Key("bos_token_id").Value(*vocabulary.bos_id);
  json.Key("eos_token_id").BeginArray();
  for (const int32_t id : vocabulary.end_ids) json.Value(id);
  json.End();
  if (vocabulary.pad_id) json.Key("pad_token_id").Value(*vocabulary.pad_id);
  json.End();
  return json.Release();
}

}  // namespace

absl::StatusOr<GgufTokenizer> ReadGgufTokenizer(GgufMetadata& metadata) {
  GgufTokenizer tokenizer;
  tokenizer.files.chat_template = metadata.OptionalText(gguf_key::kChatTemplate);
  const std::string model = metadata.OptionalText(gguf_key::kTokenizer).value_or("none");
  if (model != "none" && model != "no_vocab" && model != gguf_key::kByteLevel &&
      model != gguf_key::kPieces) {
    metadata.FailUnsupported(gguf_key::kTokenizer,
                             Quoted(model) + " is not supported, only gpt2 and llama");
  }
  if (!metadata.status().ok()) return metadata.status();
  if (model != gguf_key::kByteLevel && model != gguf_key::kPieces) return tokenizer;

  ASSIGN_OR_RETURN(auto vocabulary, ReadGgufVocabulary(metadata));
  const bool byte_level = model == gguf_key::kByteLevel;
  ASSIGN_OR_RETURN(auto text, byte_level ? MakeTokenizerJson(metadata, vocabulary)
                                         : MakeSentencePieceModel(metadata, vocabulary));
  (byte_level ? tokenizer.files.tokenizer_json : tokenizer.files.sentencepiece_model) =
      std::move(text);
  tokenizer.files.tokenizer_config_json =
      MakeTokenizerConfig(vocabulary, byte_level ? "PreTrainedTokenizerFast" : "LlamaTokenizer");
  tokenizer.generation_config_json = MakeGenerationConfig(vocabulary);
  tokenizer.vocab_size = static_cast<int64_t>(vocabulary.tokens.size());
  if (byte_level || *vocabulary.add_bos) tokenizer.bos_id = vocabulary.bos_id;
  tokenizer.eos_id = vocabulary.eos_id;
  return tokenizer;
}

}  // namespace eta
