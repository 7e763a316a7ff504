// eta-server: what the process does from its start to its end; lifecycle.h has the steps.
#include <exception>
#include <iostream>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "engine/base/status_macros.h"
#include "service/lifecycle/lifecycle.h"
#include "service/options/flags.h"
#include "service/process/exit.h"
#include "service/process/process_hardening.h"

namespace eta {
namespace {

absl::Status Start(Lifecycle& server) {
  for (const auto step : {
           &Lifecycle::CheckFlags,
           &Lifecycle::OpenLimits,
           &Lifecycle::OpenStore,
           &Lifecycle::ServeMetrics,
           &Lifecycle::PublishKvEvents,
           &Lifecycle::LoadEngine,
           &Lifecycle::StartServer,
       }) {
    RETURN_IF_ERROR((server.*step)());
  }
  return absl::OkStatus();
}

int Run(Flags flags) {
  Lifecycle server(std::move(flags));
  server.ForkFormatHelper();
  server.Harden();
  server.OpenLog();
  if (const absl::Status started = Start(server); !started.ok()) return server.BadStart(started);
  server.AwaitStop();
  server.Drain();
  server.Stop();
  return server.exit_code();
}

}  // namespace
}  // namespace eta

int main(int argc, char** argv) {
  eta::HardenBeforeFlags();
  eta::ParsedFlags parsed = eta::ParseFlags(argc, argv);
  if (!parsed.flags) return parsed.exit_code;
  try {
    return eta::Run(std::move(*parsed.flags));
  } catch (const std::bad_alloc&) {
    std::cerr << "eta-server: out of memory" << std::endl;
    return eta::kExitOutOfMemory;
  } catch (const std::exception& failure) {  // no threads
    std::cerr << "eta-server: " << failure.what() << std::endl;
    return eta::kExitBadStart;
  }
}
