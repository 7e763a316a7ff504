// `etactl stats` as sentences and tables.
#pragma once

#include <string>

#include "eta/v1/stats.pb.h"

namespace eta::ctl {

// One snapshot. `before`, if not null, is an earlier snapshot of the same call. Then the densities
// of the time between them are shown beside those since the server began. Bars are characters;
// there are no colours.
std::string DescribeStats(const v1::Stats& stats, const v1::Stats* before);

// "#######.............": the part `share` of `cells` characters. `share` is clamped to [0, 1].
std::string DensityBar(double share, int cells);

}  // namespace eta::ctl
