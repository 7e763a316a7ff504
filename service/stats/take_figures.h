// How a server stands, for its Prometheus page.
#pragma once

#include "service/calls/call_parts.h"
#include "service/telemetry/server_figures.h"

namespace eta {

// Asks everybody who knows, without waiting for the profile store.
ServerFigures TakeFigures(const CallParts& parts);
PressureFigures TakePressure(const CallParts& parts);

}  // namespace eta
