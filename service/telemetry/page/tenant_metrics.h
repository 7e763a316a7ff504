// What the page of metrics says of each tenant: what it uses, and of what.
#pragma once

#include "service/telemetry/page/page_writer.h"
#include "service/telemetry/server_figures.h"
#include "service/telemetry/telemetry_figures.h"

namespace eta {

// Summed where several tenants share a label; bounds only where one has it to itself. `server` may
// be null.
void WriteTenants(const TelemetryFigures& figures, const ServerFigures* server, PageWriter& page);

}  // namespace eta
