// Thresholds frozen by calibration: one constant per layer and query head in place of the
// predictor's output, or one constant of relative thresholds for the whole model
// (eta-semantics.md, "Profile" and "Relative thresholds"), with the operating point they were
// calibrated at. Immutable once made; shared by the requests that use it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/request/attention_settings.h"
#include "kernels/dtype.h"
#include "kernels/kv_geometry.h"

namespace eta {

struct ThresholdProfile {
  std::string name;
  int64_t version = 0;
  int32_t num_layers = 0;
  int32_t num_query_heads = 0;
  std::vector<float> thresholds;  // [L, HQ]; empty with relative_c
  std::vector<float> head_z;      // [L, HQ]; empty: one z for every head

  std::optional<float> relative_c;  // c; of a model without a predictor

  // What a request that says nothing else runs with; absent: the model's defaults.
  AttentionSettings settings;  // z: of every head, where head_z is empty

  // What it was calibrated for; empty, 0 and absent: not said, not checked.
  std::string model_fingerprint;      // EngineInfo's
  std::string tokenizer_fingerprint;  // EngineInfo's
  int32_t block_size = 0;
  int32_t sub_block = 0;  // looked at where block_size is said
  std::optional<IndexKind> index;

  // What it was calibrated with. Others do not keep it from being used (DifferencesOf).
  std::optional<DType> kv_dtype;
  std::optional<WeightFormat> weights;

  // The longest context, in tokens, at which its densities were measured; the shortest is more than
  // half of it. 0: not said.
  int64_t measured_context = 0;

  bool MeasuredAt(int64_t context) const {
    return context > measured_context / 2 && context <= measured_context;
  }
};

}  // namespace eta
