// A tokenizer.json of byte-level BPE as GGUF's metadata.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/files/input_file.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/gguf/gguf_pre_tokenizers.h"
#include "engine/checkpoint/gguf/gguf_vocabulary.h"
#include "engine/model/gguf_writer/gguf_tokenizer_keys.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxTokenizerBytes = size_t{64} << 20;
constexpr size_t kMaxTokenizerDepth = 16;

absl::Status Unsupported(const std::string& part, const std::string& sentence) {
  return absl::UnimplementedError(absl::StrCat("tokenizer.json: ", part, " ", sentence));
}

// Null where it is absent.
const Json& At(const Json& json, const char* field) {
  static const Json kNull;
  if (!json.is_object()) return kNull;
  const auto found = json.find(field);
  return found == json.end() ? kNull : *found;
}
std::string TextAt(const Json& json, const char* field) {
  const Json& value = At(json, field);
  return value.is_string() ? value.get<std::string>() : "";
}
bool IsTrue(const Json& json, const char* field) {
  const Json& value = At(json, field);
  return value.is_boolean() && value.get<bool>();
}

// The parts of a Sequence, or the part itself; none of null.
std::vector<const Json*> Parts(const Json& part, const char* list) {
  if (part.is_null()) return {};
  if (TextAt(part, "type") != "Sequence") return {&part};
  std::vector<const Json*> parts;
  for (const Json& inner : At(part, list)) parts.push_back(&inner);
  return parts;
}

absl::Status ReadNormalizer(const Json& json, PreTokenizer& cuts) {
  for (const Json* part : Parts(At(json, "normalizer"), "normalizers")) {
    const std::string type = TextAt(*part, "type");
    if (type != "NFC") return Unsupported("normalizer", Quoted(type) + " has no key in GGUF");
    cuts.composes_characters = true;
  }
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const Json& json, PreTokenizer& cuts) {
  bool byte_level = false;
  size_t patterns = 0;
  for (const Json* part : Parts(At(json, "pre_tokenizer"), "pretokenizers")) {
    const std::string type = TextAt(*part, "type");
    std::string_view pattern;
    if (type == "ByteLevel" && !IsTrue(*part, "add_prefix_space")) {
      byte_level = true;
      if (!IsTrue(*part, "use_regex")) continue;
      pattern = kByteLevelPattern;
    } else if (type == "Digits" && IsTrue(*part, "individual_digits")) {
      pattern = kEachDigitPattern;
    } else if (type == "Split" && TextAt(*part, "behavior") == "Isolated" &&
               !IsTrue(*part, "invert") && At(At(*part, "pattern"), "Regex").is_string()) {
      pattern = *At(At(*part, "pattern"), "Regex").get_ptr<const std::string*>();
    } else {
      return Unsupported("pre_tokenizer", Quoted(type) + " of this kind has no key in GGUF");
    }
    if (patterns == cuts.patterns.size()) return Unsupported("pre_tokenizer", "has too many parts");
    cuts.patterns[patterns++] = pattern;
  }
  if (byte_level) return absl::OkStatus();
  return Unsupported("pre_tokenizer", "is not byte-level, which a GGUF file needs");
}

// Whether a text begins with a special token: {"SpecialToken": {"id": ...}} before the text.
absl::Status ReadPostProcessor(const Json& json, GgufTokens& tokens) {
  for (const Json* part : Parts(At(json, "post_processor"), "processors")) {
    const std::string type = TextAt(*part, "type");
    if (type == "ByteLevel") continue;
    const Json& single = At(*part, "single");
    if (type != "TemplateProcessing" || !single.is_array() || single.empty() || single.size() > 2 ||
        !At(single.back(), "Sequence").is_object()) {
      return Unsupported("post_processor", "puts more to a text than a token before it");
    }
    if (single.size() == 1) continue;
    const std::string text = TextAt(At(single.front(), "SpecialToken"), "id");
    const auto found = std::find(tokens.texts.begin(), tokens.texts.end(), text);
    if (text.empty() || found == tokens.texts.end()) {
      return Unsupported("post_processor", "begins a text with what is no token");
    }
    tokens.bos = static_cast<int32_t>(found - tokens.texts.begin());
  }
  return absl::OkStatus();
}

absl::Status SetToken(const std::string& text, const Json& id, GgufTokenType type,
                      GgufTokens& tokens) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(kGgufMaxTokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.json: token ", Quoted(text), " has an id that is none"));
  }
  const auto at = id.get<size_t>();
  if (at >= tokens.texts.size()) {
    tokens.texts.resize(at + 1);
    tokens.types.resize(at + 1);
  }
  tokens.texts[at] = text;
  tokens.types[at] = static_cast<int32_t>(type);
  return absl::OkStatus();
}

absl::Status ReadTokens(const Json& json, GgufTokens& tokens) {
  for (const auto& [text, id] : At(At(json, "model"), "vocab").items()) {
    RETURN_IF_ERROR(SetToken(text, id, GgufTokenType::kNormal, tokens));
  }
  for (const Json& added : At(json, "added_tokens")) {
    const std::string text = TextAt(added, "content");
    for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
      if (IsTrue(added, flag)) {
        return Unsupported("added token",
                           absl::StrCat(Quoted(text), ": ", flag, " has no key in GGUF"));
      }
    }
    const bool special = IsTrue(added, "special");
    RETURN_IF_ERROR(SetToken(text, At(added, "id"),
                             special ? GgufTokenType::kControl : GgufTokenType::kUserDefined,
                             tokens));
  }
  return absl::OkStatus();
}

// Each "a b", or in newer files ["a", "b"].
absl::StatusOr<std::vector<std::string>> ReadMerges(const Json& model) {
  std::vector<std::string> merges;
  for (const Json& merge : At(model, "merges")) {
    if (merge.is_string()) {
      merges.push_back(merge.get<std::string>());
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      merges.push_back(absl::StrCat(merge[0].get<std::string>(), " ", merge[1].get<std::string>()));
    } else {
      return absl::InvalidArgumentError("tokenizer.json: merges must be pairs of texts");
    }
  }
  return merges;
}

absl::Status CheckModel(const Json& model) {
  if (TextAt(model, "type") != "BPE" || IsTrue(model, "byte_fallback")) {
    return Unsupported("model", "is not byte-level BPE");
  }
  for (const char* field : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = At(model, field);
    if (value.is_null() || (value.is_string() && value.get<std::string>().empty())) continue;
    return Unsupported(absl::StrCat("model.", field), "has no key in GGUF");
  }
  return absl::OkStatus();
}

// What bytes become that no token stands for. tokenizer_config.json may name one that the model
// does not use.
absl::Status SetUnknown(const Json& model, const std::vector<std::string>& texts, GgufHead& head) {
  const Json& unknown = At(model, "unk_token");
  if (unknown.is_null()) return absl::OkStatus();
  const auto found = std::find(texts.begin(), texts.end(), TextAt(model, "unk_token"));
  if (!unknown.is_string() || found == texts.end()) {
    return absl::InvalidArgumentError("tokenizer.json: model.unk_token is not in the vocabulary");
  }
  head.Set(gguf_key::kUnknownId, static_cast<uint32_t>(found - texts.begin()));
  return absl::OkStatus();
}

}  // namespace

absl::Status SetByteLevelKeys(const std::string& tokenizer_json, GgufTokens& tokens,
                              GgufHead& head) {
  ASSIGN_OR_RETURN(const auto tree, ParseStrictJson("tokenizer.json", tokenizer_json,
                                                    kMaxTokenizerBytes, kMaxTokenizerDepth));
  const Json& json = tree.root();
  const Json& model = At(json, "model");
  RETURN_IF_ERROR(CheckModel(model));
  PreTokenizer cuts = {.patterns = {}, .ignore_merges = IsTrue(model, "ignore_merges")};
  RETURN_IF_ERROR(ReadNormalizer(json, cuts));
  RETURN_IF_ERROR(ReadPreTokenizer(json, cuts));
  const std::string_view name = FindPreTokenizerName(cuts);
  if (name.empty()) return Unsupported("pre_tokenizer", "cuts as none that has a name in GGUF");
  RETURN_IF_ERROR(ReadTokens(json, tokens));
  RETURN_IF_ERROR(ReadPostProcessor(json, tokens));
  ASSIGN_OR_RETURN(const auto merges, ReadMerges(model));
  head.Set(gguf_key::kTokenizer, gguf_key::kByteLevel);
  head.Set(gguf_key::kPreTokenizer, name);
  head.Set(gguf_key::kMerges, merges);
  head.Set(gguf_key::kAddBos, tokens.bos.has_value());
  RETURN_IF_ERROR(SetUnknown(model, tokens.texts, head));
  return absl::OkStatus();
}

}  // namespace eta
