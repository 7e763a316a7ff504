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

struct GgufRope {
  int64_t head_dim = 0;
  const std::vector<float>& factors;  // of kGgufRopeFactors; empty: none
  // gpt-oss: config.json says it where there is no scaling, too, and yarn's ramp ends inside of
  // pairs, as the model was trained. The file does not tell, and llama.cpp takes whole pairs.
  bool names_scaling = false;
};

// The fields rope_theta and, if there is scaling, rope_scaling. `prefix`: "llama." and the like.
void WriteRope(GgufMetadata& metadata, const std::string& prefix, const GgufRope& rope,
               JsonWriter& json);

}  // namespace eta
