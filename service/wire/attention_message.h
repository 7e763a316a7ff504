// What was read, as the messages of several methods carry it.
#pragma once

#include "engine/request/attention_sums.h"
#include "eta/v1/generate.pb.h"

namespace eta {

// Without layers. A mean is not set where nothing was counted that it could be of.
v1::AttentionStats ToMessage(const AttentionSums& sums);

}  // namespace eta
