// `etactl generate`: sends one prompt and shows the answer as it arrives.
#pragma once

#include "service/etactl/generate/request.h"
#include "service/etactl/server.h"

namespace eta::ctl {

// Returns the exit code of the process.
int RunGenerate(const ServerFlags& server, const GenerateFlags& flags);

}  // namespace eta::ctl
