// Settings of a sequence that is run through a model to measure one way of attending.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/runtime/runner.h"
#include "engine/model/model_config.h"

namespace eta {

// The settings of a sequence of `tokens` tokens. The attention's profile and `special_ids`, the ids
// of control tokens in ascending order, must outlive the use of what is returned.
SequenceSettings SequenceSettingsOf(const EvaluatedAttention& attention,
                                    std::span<const int32_t> special_ids, const ModelConfig& config,
                                    int64_t tokens);

// True if the rows of a prompt are computed alike, so that sequences of both can go on from one
// prompt: the gate's thresholds, the cache and tempered keys are the same, and both read the whole
// prompt.
bool SamePrompt(const EvaluatedAttention& a, const EvaluatedAttention& b);

// Indices of attentions whose prompts are the same, in the order of the first of each. With
// `rivals_apart` rivals, whose copies of a prompt take time, share none with others.
std::vector<std::vector<size_t>> ByPrompt(std::span<const EvaluatedAttention> attentions,
                                          bool rivals_apart);

}  // namespace eta
