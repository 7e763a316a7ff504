// How a server stands, for its Prometheus page.
#pragma once

#include "service/calls/service_context.h"
#include "service/telemetry/server_figures.h"

namespace eta {

// Asks everybody who knows, without waiting for the profile store.
ServerFigures TakeFigures(const ServiceContext& service);
PressureFigures TakePressure(const ServiceContext& service);

}  // namespace eta
