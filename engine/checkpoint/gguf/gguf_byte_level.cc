// lint: untrusted-input, fuzz-covered
// A byte-level vocabulary with merges as tokenizer.json.
#include "absl/strings/str_cat.h"
#include "engine/base/files/input_file.h"
#include "engine/base/json/json_writer.h"
#include "engine/checkpoint/gguf/gguf_pre_tokenizers.h"
#include "engine/checkpoint/gguf/gguf_tokenizer.h"

namespace eta {
namespace {

bool IsAdded(GgufTokenType type) {
  return type == GgufTokenType::kControl || type == GgufTokenType::kUserDefined ||
         type == GgufTokenType::kUnknown;
}

void WriteAddedTokens(const GgufVocabulary& vocabulary, JsonWriter& json) {
  json.Key("added_tokens").BeginArray();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!IsAdded(vocabulary.types[id])) continue;
    json.BeginObject();
    json.Key("id").Value(id);
    json.Key("content").Value(vocabulary.tokens[id]);
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
      json.Key(flag).Value(false);
    }
    json.Key("special").Value(vocabulary.types[id] != GgufTokenType::kUserDefined);
    json.End();
  }
  json.End();
}

void WriteByteLevel(JsonWriter& json, bool add_prefix_space, bool use_regex) {
  json.BeginObject();
  json.Key("type").Value("ByteLevel");
  json.Key("add_prefix_space").Value(add_prefix_space);
  json.Key("trim_offsets").Value(true);
  json.Key("use_regex").Value(use_regex);
  json.End();
}

void WritePreTokenizer(const PreTokenizer& cuts, JsonWriter& json) {
  json.Key("pre_tokenizer").BeginObject();
  json.Key("type").Value("Sequence");
  json.Key("pretokenizers").BeginArray();
  for (const std::string_view pattern : cuts.patterns) {
    if (pattern.empty()) break;
    json.BeginObject();
    json.Key("type").Value("Split");
    json.Key("pattern").BeginObject();
    json.Key("Regex").Value(pattern);
    json.End();
    json.Key("behavior").Value("Isolated");
    json.Key("invert").Value(false);
    json.End();
  }
  WriteByteLevel(json, false, false);
  json.End();
  json.End();
}

// {"SpecialToken": {"id": "<s>", "type_id": 0}} and {"Sequence": {"id": "A", "type_id": 0}}.
void WriteTemplatePart(JsonWriter& json, const char* kind, std::string_view id, int type_id) {
  json.BeginObject();
  json.Key(kind).BeginObject();
  json.Key("id").Value(id);
  json.Key("type_id").Value(type_id);
  json.End();
  json.End();
}

void WriteBosTemplate(std::string_view bos, int32_t bos_id, JsonWriter& json) {
  json.Key("post_processor").BeginObject();
  json.Key("type").Value("TemplateProcessing");
  json.Key("single").BeginArray();
  WriteTemplatePart(json, "SpecialToken", bos, 0);
  WriteTemplatePart(json, "Sequence", "A", 0);
  json.End();
  json.Key("pair").BeginArray();
  WriteTemplatePart(json, "SpecialToken", bos, 0);
  WriteTemplatePart(json, "Sequence", "A", 0);
  WriteTemplatePart(json, "SpecialToken", bos, 1);
  WriteTemplatePart(json, "Sequence", "B", 1);
  json.End();
  json.Key("special_tokens").BeginObject();
  json.Key(bos).BeginObject();
  json.Key("id").Value(bos);
  json.Key("ids").BeginArray();
  json.Value(bos_id);
  json.End();
  json.Key("tokens").BeginArray();
  json.Value(bos);
  json.End();
  json.End();
  json.End();
  json.End();
}

// Ids past the last ordinary token need not be here, but for the unknown one: those of added tokens
// stand in their list, and unused ones only pad the vocabulary. An added token before it must, or
// the ids would not fit.
void WriteVocabulary(const GgufVocabulary& vocabulary, JsonWriter& json) {
  const size_t least = vocabulary.unk_id ? static_cast<size_t>(*vocabulary.unk_id) + 1 : 0;
  size_t end = vocabulary.tokens.size();
  while (end > least && vocabulary.types[end - 1] != GgufTokenType::kNormal) --end;
  json.Key("vocab").BeginObject();
  for (size_t id = 0; id < end; ++id) json.Key(vocabulary.tokens[id]).Value(id);
  json.End();
}

}  // namespace

absl::StatusOr<std::string> MakeTokenizerJson(GgufMetadata& metadata, GgufVocabulary& vocabulary) {
  const std::string pre = metadata.OptionalText(gguf_key::kPreTokenizer).value_or("default");
  const PreTokenizer* cuts = FindPreTokenizer(pre);
  if (cuts == nullptr) {
    metadata.FailUnsupported(gguf_key::kPreTokenizer,
                             Quoted(pre) + " is not a pre-tokenizer that is known");
  }
  if (!metadata.Has(gguf_key::kMerges)) metadata.Fail(gguf_key::kMerges, "is missing");
  const std::vector<std::string_view> merges = metadata.Texts(gguf_key::kMerges);
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ');
    if (space == 0 || space == std::string_view::npos || space + 1 == merges[i].size() ||
        merges[i].find(' ', space + 1) != std::string_view::npos) {
      metadata.Fail(gguf_key::kMerges,
                    absl::StrCat("entry ", i, " must be two parts with a space between"));
    }
  }
  for (size_t id = 0; id < vocabulary.types.size(); ++id) {
    if (vocabulary.types[id] == GgufTokenType::kByte) {
      metadata.FailUnsupported(gguf_key::kTokenTypes,
                               absl::StrCat("entry ", id, " is a byte token"));
    }
  }
  if (metadata.OptionalBool(gguf_key::kAddSpacePrefix).value_or(false)) {
    metadata.FailUnsupported(gguf_key::kAddSpacePrefix, "true is not supported with gpt2");
  }
  if (!metadata.status().ok()) return metadata.status();

  vocabulary.add_bos = vocabulary.add_bos.value_or(cuts->adds_bos) && vocabulary.bos_id;
  JsonWriter json;
  json.BeginObject();
  json.Key("version").Value("1.0");
  json.Key("truncation").Value(nullptr);
  json.Key("padding").Value(nullptr);
  WriteAddedTokens(vocabulary, json);
  json.Key("normalizer");
  if (cuts->composes_characters) {
    json.BeginObject();
    json.Key("type").Value("NFC");
    json.End();
  } else {
    json.Value(nullptr);
  }
  WritePreTokenizer(*cuts, json);
  if (*vocabulary.add_bos) {
    WriteBosTemplate(vocabulary.TextOf(vocabulary.bos_id), *vocabulary.bos_id, json);
  } else {
    json.Key("post_processor").Value(nullptr);
  }
  json.Key("decoder");
  WriteByteLevel(json, true, true);
  json.Key("model").BeginObject();
  json.Key("type").Value("BPE");
  for (const char* field : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    json.Key(field).Value(nullptr);
  }
  json.Key("unk_token");
  if (vocabulary.unk_id) {
    json.Value(vocabulary.TextOf(vocabulary.unk_id));
  } else {
    json.Value(nullptr);
  }
  json.Key("fuse_unk").Value(false);
  json.Key("byte_fallback").Value(false);
  json.Key("ignore_merges").Value(cuts->ignore_merges);
  WriteVocabulary(vocabulary, json);
  json.Key("merges").BeginArray();
  for (const std::string_view merge : merges) json.Value(merge);
  json.End();
  json.End();
  json.End();
  return json.Release();
}

}  // namespace eta
