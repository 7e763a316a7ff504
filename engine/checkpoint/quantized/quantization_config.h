// quantization_config of config.json: how a folder's weights are kept in 4 or 8 bits.
//
// Read are "fp8" (DeepSeek, Qwen; transformers' FineGrainedFP8Config), "mxfp4" (gpt-oss) and
// "compressed-tensors" in its formats float-quantized, int-quantized and pack-quantized, with one
// group of settings.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace eta {

struct Quantization {
  enum class Form {
    kFloat8,  // X.weight is e4m3
    kInt8,    // X.weight is int8
    kPacked,  // X.weight_packed is int32 words of numbers of `bits` bits
    kMxfp4    // experts are (expert_stacks.h), nothing else
  };
  // What a scale is for.
  enum class Scope { kTensor, kChannel, kGroup, kBlock };

  Form form = Form::kFloat8;
  Scope scope = Scope::kChannel;
  int bits = 8;
  bool symmetric = true;        // else there is X.weight_zero_point
  const char* scale = nullptr;  // what X's tensor of scales is called behind the last dot
  int64_t block_rows = 1;       // kBlock
  int64_t block_cols = 1;       // kBlock, kGroup
};

// UNIMPLEMENTED, naming the field, for a method or form that is not read: GPTQ and AWQ among them;
// INVALID_ARGUMENT for a field of a wrong type or size.
absl::StatusOr<Quantization> ParseQuantization(const nlohmann::json& config);

}  // namespace eta
