// What this project adds to GGUF's metadata, under "eta.": how attention prunes, field by field as
// config.json has it.
//
//   eta.family        the family that was adapted (llama, mistral, qwen2, qwen3, smollm3), or eta:
//                     the model predicts thresholds. Absent: it is one of the architecture's own.
//   eta.gate          text    eta.beta          float32       both with eta.family only
//   eta.index         text    eta.sink_blocks   whole number
//   eta.reads         text    eta.block_size    whole number
//   eta.special_keys  text
#pragma once

#include <string_view>

#include "engine/base/json/json_writer.h"
#include "engine/checkpoint/gguf/gguf_metadata.h"

namespace eta {

namespace gguf_key {

inline constexpr char kEtaFamily[] = "eta.family";
inline constexpr char kEtaGate[] = "eta.gate";
inline constexpr char kEtaBeta[] = "eta.beta";
inline constexpr char kEtaIndex[] = "eta.index";
inline constexpr char kEtaReads[] = "eta.reads";
inline constexpr char kEtaSpecialKeys[] = "eta.special_keys";
inline constexpr char kEtaSinkBlocks[] = "eta.sink_blocks";
inline constexpr char kEtaBlockSize[] = "eta.block_size";

}  // namespace gguf_key

inline constexpr std::string_view kEtaModelType = "eta";
inline constexpr std::string_view kEtaClass = "EtaForCausalLM";

// Whether the model predicts thresholds.
inline bool IsEtaModel(const GgufMetadata& metadata) {
  return metadata.Has(gguf_key::kEtaFamily);
}

// Writes the fields eta_* of config.json. `model_type`: what the file's other metadata make of it.
// UNIMPLEMENTED for keys that are not known; INVALID_ARGUMENT for values of another type, for
// another family than the file's, for a gate without a family. Which words and numbers make a model
// that runs is ParseModelConfig's question.
void WriteEtaFields(GgufMetadata& metadata, std::string_view model_type, JsonWriter& json);

}  // namespace eta
