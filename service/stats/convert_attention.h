// What Stats says of attention: sums, the last ten minutes, and how far these lie from what
// calibration measured.
#pragma once

#include "eta/v1/generate.pb.h"
#include "eta/v1/stats.pb.h"
#include "service/stats/server_status.h"

namespace eta {

// Stats.attention: a series for each account that decoded.
void FillAttention(const ServerStatus& status, v1::Stats& out);

}  // namespace eta
