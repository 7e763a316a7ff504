// Fills a ServerStatus: the one place where everybody who knows is asked.
#pragma once

#include <optional>

#include "engine/base/tenant.h"
#include "service/calls/service_context.h"
#include "service/stats/server_status.h"

namespace eta {

struct StatusQuery {
  bool layers = false;
  bool latencies = false;
  bool process = false;
  std::optional<Tenant> tenant;  // only what is its own; absent: everybody's
};

// Any thread. Takes the locks of what it reads one after another, each briefly; never waits for the
// profile store. Without files and watchers, which the server adds.
ServerStatus ReadServerStatus(const StatusQuery& query, const ServiceContext& service);

}  // namespace eta
