// Figures as one SVG picture.
#pragma once

#include <span>
#include <string>

#include "calibration/figures/figure.h"

namespace eta {

// One below the other under a title; an empty title takes no room. A line of many points is drawn
// by the means of some hundred stretches of them. Values that are not finite are left out.
std::string SvgOf(std::span<const Figure> figures, const std::string& title);

}  // namespace eta
