// What eta-server gives up when it starts, before it reads a model or hears from anybody.
#pragma once

#include "absl/status/statusor.h"

namespace eta {

enum class SystemCallFilter {
  kAuto,  // on where it is known to do no harm: see FiltersByDefault
  kOn,    // or the server does not start
  kOff
};

struct ProcessOptions {
  // A core file holds prompts, answers and keys, and so does what a debugger sees.
  bool allow_core_dumps = false;
  SystemCallFilter system_call_filter = SystemCallFilter::kAuto;
};

// Whether SystemCallFilter::kAuto means on. Not with `generates_code` (the CUDA driver compiles at
// run time and starts programs of its own), nor in a build with sanitizers, which fork and trace.
bool FiltersByDefault(bool generates_code);

// Files and sockets that this process makes are its user's own (umask 077), it gains no rights
// through programs that it starts, leaves no core file, is nobody's to trace but root's, and has
// its system calls filtered (system_call_filter.h). Threads that run already are not filtered: call
// it before any begins.
// True if the filter is in force. FAILED_PRECONDITION if it was asked for and cannot be.
absl::StatusOr<bool> HardenProcess(const ProcessOptions& options, bool generates_code);

}  // namespace eta
