// The flags of eta-server by subject. ParseFlags puts them together.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "service/options/flags.h"

namespace eta {

// Each function adds its flags to `app`. Parsing fills the options, which must outlive `app`.
void AddModelFlags(CLI::App& app, EngineOptions& options, std::string& chat_template);
void AddEngineFlags(CLI::App& app, EngineOptions& options);
void AddFormatFlags(CLI::App& app, FormatOptions& options, FormatHelperOptions& helper);
void AddLimitFlags(CLI::App& app, Limits& limits, std::string& tenants);
void AddProfileFlags(CLI::App& app, Flags& flags);
void AddServerFlags(CLI::App& app, ServerOptions& options);  // call it together with AddAccessFlags
void AddAccessFlags(CLI::App& app, ServerOptions& options);
void AddGatewayFlags(CLI::App& app, ServerOptions& options);
void AddProcessFlags(CLI::App& app, Flags& flags);
void AddMetricsFlags(CLI::App& app, Flags& flags);
void AddKvEventFlags(CLI::App& app, KvEventOptions& options);
void AddTraceFlags(CLI::App& app, ServerOptions& options);
void AddLogFlags(CLI::App& app, LogOptions& options);

}  // namespace eta
