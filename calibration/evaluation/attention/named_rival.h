// Rivals by the names of their ways of attending.
#pragma once

#include <memory>

#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/rivals/rival.h"

namespace eta {

// Null for ways that are the product's own. Of a model with this gate.
std::shared_ptr<const Rival> NamedRival(const AttentionName& name, Gate gate, float beta);

// Rules of locality have a window of their own in the place of pinned blocks, and a sink block
// where they were published with sinks and choose blocks. Settings that are there stay.
void SetLocality(AttentionKind kind, AttentionSettings& settings);

}  // namespace eta
