// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/gguf/gguf_eta.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "engine/base/input_file.h"

namespace eta {
namespace {

constexpr std::string_view kPrefix = "eta.";
constexpr char kFamily[] = "eta.family";
constexpr int64_t kMaxEtaSize = int64_t{1} << 24;

constexpr std::string_view kTexts[] = {"gate", "index", "reads", "special_keys"};
constexpr std::string_view kSizes[] = {"block_size", "sink_blocks"};
constexpr std::string_view kBeta = "beta";

bool IsKnown(std::string_view name) {
  const auto in = [name](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return name == "family" || name == kBeta || in(kTexts) || in(kSizes);
}

std::string FieldOf(std::string_view name) {
  return "eta_" + std::string(name);
}

void WriteFamily(GgufMetadata& metadata, std::string_view model_type, JsonWriter& json) {
  const std::string family = metadata.Text(kFamily);
  if (family == kEtaModelType && model_type == "llama") return;
  if (family != model_type) {
    metadata.Fail(kFamily,
                  Quoted(family) + " is not the family of the file, " + std::string(model_type));
  }
  json.Key(FieldOf("family")).Value(family);
}

}  // namespace

void WriteEtaFields(GgufMetadata& metadata, std::string_view model_type, JsonWriter& json) {
  for (const std::string& key : metadata.KeysUnder(kPrefix)) {
    if (!IsKnown(std::string_view(key).substr(kPrefix.size()))) {
      metadata.FailUnsupported(key, "is not known");
    }
  }
  if (IsEtaModel(metadata)) {
    WriteFamily(metadata, model_type, json);
  } else {
    for (const char* key : {"eta.beta", "eta.gate"}) {
      if (metadata.Has(key)) metadata.Fail(key, "is there without eta.family");
    }
  }
  const auto key_of = [](std::string_view name) { return std::string(kPrefix).append(name); };
  if (const auto beta = metadata.OptionalReal(key_of(kBeta))) {
    json.Key(FieldOf(kBeta)).Value(*beta);
  }
  for (const std::string_view name : kTexts) {
    if (const auto text = metadata.OptionalText(key_of(name))) {
      json.Key(FieldOf(name)).Value(*text);
    }
  }
  for (const std::string_view name : kSizes) {
    if (const auto size = metadata.OptionalInteger(key_of(name), 0, kMaxEtaSize)) {
      json.Key(FieldOf(name)).Value(*size);
    }
  }
}

}  // namespace eta
