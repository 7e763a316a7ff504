// `etactl stats` in words and tables.
#pragma once

#include <string>

#include "eta/v1/stats.pb.h"

namespace eta::ctl {

// One snapshot. `before`, if it is not null, is an earlier one of the same call: densities of the
// time in between stand beside those since the server began. Bars are characters; no colours.
std::string DescribeStats(const v1::Stats& stats, const v1::Stats* before);

// "#######.............": `share` of `cells`, which is cut to [0, 1].
std::string DensityBar(double share, int cells);

}  // namespace eta::ctl
