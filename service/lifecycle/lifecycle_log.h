// The lines that tell an operator how the process starts, fares and ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/tenant.h"
#include "engine/front/engine.h"
#include "kernels/system/usable_cpus.h"
#include "service/log/log.h"
#include "service/options/flags.h"
#include "service/process/failure_watch.h"
#include "service/process/pressure_level.h"

namespace eta {

// A warning for each choice of the flags, and of the environment, that opens the server up.
void LogInsecureChoices(const Flags& flags, bool filtered, bool has_failpoints, Log& log);
// What is served, and by which flags. `filtered`: system calls are.
void LogStart(const Flags& flags, bool filtered, const UsableCpus& cpus, int step_cpus,
              const EngineInfo& info, Log& log);
// A warning where chats are refused since the model's chat template is not understood.
void LogChatTemplate(const EngineInfo& info, Log& log);
// A warning where --threads are more than may run at a time.
void LogTooManyThreads(const UsableCpus& cpus, const BackendOptions& backend, Log& log);
// A reload of --tenants.
void LogLimits(const absl::Status& status, Log& log);
void LogPressure(Pressure level, double used, Log& log);
// Where the prefix cache's events are published; `replay`: and asked for again, if anywhere.
void LogKvEvents(const std::string& address, const std::string& replay, Log& log);
// Events were lost, or are published no more.
void LogKvEventTrouble(const absl::Status& why, Log& log);
// What --keep_versions deleted.
void LogRemovedVersions(const Tenant& tenant, const std::string& name,
                        const std::vector<int64_t>& versions, Log& log);
// Why a server that cannot serve any more ends.
void LogEnd(Failure failure, Log& log);
void LogDrain(const ServerOptions& options, Log& log);

}  // namespace eta
