// Loss and densities of a run over its steps, as an SVG picture.
#pragma once

#include <string>

#include "training/progress/log_lines.h"

namespace eta::training {

// Two charts, one above the other. A curve of many steps is drawn by the means of some hundred
// stretches of them; evaluations are dots. Values that are not finite are left out.
std::string SvgCurves(const RunHistory& history, const std::string& title);

}  // namespace eta::training
