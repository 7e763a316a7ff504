// RoPE scaling in a GGUF file's metadata, and LLaMA 3's, of which the file has only the result.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/json/json_writer.h"
#include "engine/checkpoint/gguf/gguf_metadata.h"

namespace eta {

// The tensor of what each pair's frequency is divided by.
inline constexpr char kGgufRopeFactors[] = "rope_freqs.weight";

struct Llama3Scaling {
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_context = 8192;
};

// The numbers from which `factors`, one per pair of a head, follow: what each frequency was divided
// by. Nullopt if they follow from none. REQUIRES: factors are not all 1.
std::optional<Llama3Scaling> FindLlama3Scaling(const std::vector<float>& factors, double rope_theta,
                                               int64_t head_dim);

// The fields rope_theta and, if there is scaling, rope_scaling. `prefix`: "llama." and the like.
void WriteRope(GgufMetadata& metadata, const std::string& prefix, int64_t head_dim,
               const std::vector<float>& factors, JsonWriter& json);

}  // namespace eta
