// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/gguf/gguf_eta.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "engine/base/files/input_file.h"

namespace eta {
namespace {

constexpr std::string_view kPrefix = "eta.";
constexpr int64_t kMaxEtaSize = int64_t{1} << 24;

constexpr std::string_view kTexts[] = {gguf_key::kEtaGate, gguf_key::kEtaIndex, gguf_key::kEtaReads,
                                       gguf_key::kEtaSpecialKeys};
constexpr std::string_view kSizes[] = {gguf_key::kEtaBlockSize, gguf_key::kEtaSinkBlocks};

bool IsKnown(std::string_view key) {
  const auto in = [key](const auto& keys) {
    return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
  };
  return key == gguf_key::kEtaFamily || key == gguf_key::kEtaBeta || in(kTexts) || in(kSizes);
}

// "eta.beta" -> "eta_beta"
std::string FieldOf(std::string_view key) {
  return "eta_" + std::string(key.substr(kPrefix.size()));
}

void WriteFamily(GgufMetadata& metadata, std::string_view model_type, JsonWriter& json) {
  const std::string family = metadata.Text(gguf_key::kEtaFamily);
  if (family == kEtaModelType && model_type == "llama") return;
  if (family != model_type) {
    metadata.Fail(gguf_key::kEtaFamily,
                  Quoted(family) + " is not the family of the file, " + std::string(model_type));
  }
  json.Key(FieldOf(gguf_key::kEtaFamily)).Value(family);
}

}  // namespace

void WriteEtaFields(GgufMetadata& metadata, std::string_view model_type, JsonWriter& json) {
  for (const std::string& key : metadata.KeysUnder(kPrefix)) {
    if (!IsKnown(key)) {
      metadata.FailUnsupported(key, "is not known");
    }
  }
  if (IsEtaModel(metadata)) {
    WriteFamily(metadata, model_type, json);
  } else {
    for (const char* key : {gguf_key::kEtaBeta, gguf_key::kEtaGate}) {
      if (metadata.Has(key)) metadata.Fail(key, "is there without eta.family");
    }
  }
  if (const auto beta = metadata.OptionalReal(gguf_key::kEtaBeta)) {
    json.Key(FieldOf(gguf_key::kEtaBeta)).Value(*beta);
  }
  for (const std::string_view key : kTexts) {
    if (const auto text = metadata.OptionalText(key)) json.Key(FieldOf(key)).Value(*text);
  }
  for (const std::string_view key : kSizes) {
    if (const auto size = metadata.OptionalInteger(key, 0, kMaxEtaSize)) {
      json.Key(FieldOf(key)).Value(*size);
    }
  }
}

}  // namespace eta
